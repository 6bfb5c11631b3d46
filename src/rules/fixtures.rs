//! What the tests of this room share.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::Facts;
use crate::model::{Quality, Value};

/// A device as a test says it is; remembers which metrics were asked for.
#[derive(Debug, Default)]
pub(super) struct Twin {
    metrics: BTreeMap<String, (Value, Quality)>,
    asked: RefCell<Vec<String>>,
}

impl Twin {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn with(self, name: &str, value: Value) -> Self {
        self.told(name, value, Quality::Good)
    }

    pub(super) fn told(mut self, name: &str, value: Value, quality: Quality) -> Self {
        self.metrics.insert(name.to_owned(), (value, quality));
        self
    }

    /// The metrics that were asked for since the last call, in order.
    pub(super) fn take_asked(&self) -> Vec<String> {
        self.asked.take()
    }
}

impl Facts for Twin {
    fn metric(&self, name: &str) -> Option<(&Value, Quality)> {
        self.asked.borrow_mut().push(name.to_owned());
        self.metrics.get(name).map(|(value, quality)| (value, *quality))
    }
}
