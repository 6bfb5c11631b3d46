//! Twins by key, with a bound.

use std::collections::HashMap;

use super::Twin;
use crate::model::ObjectKey;

/// All twins, by [`ObjectKey`].
#[derive(Debug)]
pub struct Indexer {
    twins: HashMap<ObjectKey, Twin>,
    keys_max: usize,
}

/// A new device that does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("queue.keys_max of {0} devices is reached; raise it or remove devices")]
pub struct TooMany(pub usize);

impl Indexer {
    /// An empty index for at most `keys_max` devices.
    pub fn new(keys_max: usize) -> Self {
        Self { twins: HashMap::new(), keys_max }
    }

    /// The twin of a key, made by `create` if the key is new.
    pub fn entry(&mut self, key: &ObjectKey, create: impl FnOnce() -> Twin) -> Result<&mut Twin, TooMany> {
        if !self.twins.contains_key(key) && self.twins.len() >= self.keys_max {
            return Err(TooMany(self.keys_max));
        }
        Ok(self.twins.entry(key.clone()).or_insert_with(create))
    }

    /// The twin of a key.
    pub fn get(&self, key: &ObjectKey) -> Option<&Twin> {
        self.twins.get(key)
    }

    /// The twin of a key, to be changed.
    pub fn get_mut(&mut self, key: &ObjectKey) -> Option<&mut Twin> {
        self.twins.get_mut(key)
    }

    /// Forgets a device.
    pub fn remove(&mut self, key: &ObjectKey) -> Option<Twin> {
        self.twins.remove(key)
    }

    /// How many devices are known.
    pub fn len(&self) -> usize {
        self.twins.len()
    }

    /// True before the first device.
    pub fn is_empty(&self) -> bool {
        self.twins.is_empty()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may panic")]
mod tests {
    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("default", name)
    }

    #[test]
    fn a_device_beyond_the_bound_is_refused_and_nobody_is_evicted() {
        let mut index = Indexer::new(2);
        for name in ["a", "b"] {
            index.entry(&key(name), || Twin::new(name.into())).unwrap();
        }
        assert_eq!(index.entry(&key("c"), || Twin::new("c".into())).unwrap_err(), TooMany(2));
        assert!(index.entry(&key("a"), || Twin::new("a".into())).is_ok(), "a known device is always welcome");
        index.remove(&key("b")).unwrap();
        assert!(index.entry(&key("c"), || Twin::new("c".into())).is_ok());
        assert_eq!(index.len(), 2);
    }
}
