//! `ObjectKey`: `namespace/name`, the one key of twins, deltas, alerts and Kafka records.

use std::fmt;
use std::sync::Arc;

/// `namespace/name` of an object, as client-go's `MetaNamespaceKeyFunc` writes it.
///
/// The name is what the device calls itself: any UTF-8, also with `/`. [`kube_name`] makes it fit for Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    namespace: Arc<str>,
    name: Arc<str>,
}

impl ObjectKey {
    /// A key in `namespace`, which holds no `/`.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        let (namespace, name) = (namespace.into(), name.into());
        debug_assert!(!namespace.contains('/'), "a namespace holds no slash");
        Self { namespace, name }
    }

    /// The namespace; `gateway.namespace` in the configuration.
    pub fn namespace(&self) -> &Arc<str> {
        &self.namespace
    }

    /// The name as the device gives it.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Reads `namespace/name`; everything behind the first `/` is the name.
    pub fn parse(text: &str) -> Option<Self> {
        let (namespace, name) = text.split_once('/')?;
        (!namespace.is_empty() && !name.is_empty()).then(|| Self::new(namespace, name))
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// `name` as an RFC 1123 subdomain label: lower case, other characters `-`, plus 8 hex digits of its hash if
/// anything had to change, so that two names never meet. At most 63 bytes.
pub fn kube_name(name: &str) -> String {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    let ends_well = |s: &str| {
        let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        edge(s.chars().next()) && edge(s.chars().last()) && !s.contains("..") && !s.contains(".-") && !s.contains("-.")
    };
    if name.len() <= 63 && name.chars().all(plain) && ends_well(name) {
        return name.to_owned();
    }
    let mut safe = String::with_capacity(name.len() + 9);
    for c in name.chars().flat_map(char::to_lowercase) {
        let c = if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' };
        if !(c == '-' && (safe.is_empty() || safe.ends_with('-'))) {
            safe.push(c);
        }
    }
    safe.truncate(54);
    let stem = safe.trim_end_matches('-');
    let stem = if stem.is_empty() { "x" } else { stem };
    format!("{stem}-{:08x}", fnv1a(name.as_bytes()))
}

/// FNV-1a, 32 bit: stable over releases, which a hash of the standard library is not.
fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_kubernetes_takes_stays_as_it_is() {
        for name in ["press07", "a-b.c", "0"] {
            assert_eq!(kube_name(name), name);
        }
    }

    #[test]
    fn two_names_that_differ_never_meet() {
        assert_ne!(kube_name("Press 07"), kube_name("press/07"));
        assert_ne!(kube_name("a..b"), kube_name("a.b"));
    }

    #[test]
    fn a_made_name_is_a_valid_label() {
        for name in ["hall/door 4", "Ü", "-", "", "A", &"x".repeat(300), "压力机"] {
            let made = kube_name(name);
            assert!(made.len() <= 63, "{made}");
            assert!(made.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'), "{made}");
            assert!(!made.starts_with('-') && !made.ends_with('-'), "{made}");
        }
    }

    #[test]
    fn a_key_is_read_back_with_slashes_in_its_name() {
        let key = ObjectKey::parse("default/hall/door 4").expect("well formed");
        assert_eq!((&**key.namespace(), &**key.name()), ("default", "hall/door 4"));
        assert_eq!(key.to_string(), "default/hall/door 4");
        assert!(ObjectKey::parse("nothing").is_none());
    }
}
