//! Finds the rules that a reading touches, without looking at the others.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::glob::Glob;
use crate::model::ObjectKey;

/// References to rules, of 4 bytes each, that the caches of all devices hold together: 64 MB.
const CACHED_MAX: usize = 16_000_000;
/// What a list costs besides its rules, in references: its keys and its place in the maps.
const LIST_COST: usize = 64;

/// Index from metric names to rules.
///
/// Rules without a pattern are the same for every device and are found by name alone. For rules with one, the ones
/// that match a device are remembered per device and metric when they are first asked for. That cache is bounded: when
/// it is full it is emptied and fills again by use.
#[derive(Debug)]
pub(super) struct Selection {
    metrics: HashMap<Arc<str>, Named>,
    cache: HashMap<ObjectKey, BTreeMap<u32, Box<[u32]>>>,
    cached: usize,
    cached_max: usize,
}

/// The rules that name a metric, in their order.
#[derive(Debug, Default)]
struct Named {
    id: u32,
    everywhere: Vec<u32>,
    patterned: Vec<(u32, Glob)>,
}

impl Selection {
    pub(super) fn new() -> Self {
        Self { metrics: HashMap::new(), cache: HashMap::new(), cached: 0, cached_max: CACHED_MAX }
    }

    /// Adds a rule by the metrics that it names.
    pub(super) fn add(&mut self, rule: u32, metrics: &[Arc<str>], pattern: Option<&Glob>) {
        for metric in metrics {
            let id = self.metrics.len() as u32;
            let named = self.metrics.entry(metric.clone()).or_insert_with(|| Named { id, ..Named::default() });
            match pattern {
                None => named.everywhere.push(rule),
                Some(pattern) => named.patterned.push((rule, pattern.clone())),
            }
        }
    }

    /// Puts the rules that name one of the metrics and may apply to the device into `touched`: in order, each once.
    pub(super) fn touched(&mut self, device: &ObjectKey, metrics: &[Arc<str>], touched: &mut Vec<u32>) {
        touched.clear();
        for metric in metrics {
            let Some(named) = self.metrics.get(metric) else { continue };
            touched.extend_from_slice(&named.everywhere);
            if named.patterned.is_empty() {
                continue;
            }
            if let Some(matching) = self.cache.get(device).and_then(|lists| lists.get(&named.id)) {
                touched.extend_from_slice(matching);
                continue;
            }
            let matching = named.matching(device.name());
            touched.extend_from_slice(&matching);
            let id = named.id;
            self.remember(device, id, matching);
        }
        touched.sort_unstable();
        touched.dedup();
    }

    /// Forgets a device.
    pub(super) fn forget(&mut self, device: &ObjectKey) {
        let lists = self.cache.remove(device).unwrap_or_default();
        self.cached -= lists.values().map(|list| cost(list)).sum::<usize>();
    }

    fn remember(&mut self, device: &ObjectKey, metric: u32, matching: Box<[u32]>) {
        let cost = cost(&matching);
        if self.cached + cost > self.cached_max {
            self.cache.clear();
            self.cached = 0;
        }
        self.cached += cost;
        self.cache.entry(device.clone()).or_default().insert(metric, matching);
    }
}

impl Named {
    fn matching(&self, device: &str) -> Box<[u32]> {
        self.patterned.iter().filter(|(_, pattern)| pattern.matches(device)).map(|(rule, _)| *rule).collect()
    }
}

fn cost(list: &[u32]) -> usize {
    LIST_COST + list.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection() -> Selection {
        let mut selection = Selection::new();
        let metrics = |names: &[&str]| names.iter().map(|name| Arc::from(*name)).collect::<Vec<Arc<str>>>();
        selection.add(0, &metrics(&["t"]), None);
        selection.add(1, &metrics(&["t", "v"]), Some(&Glob::new("press*")));
        selection.add(2, &metrics(&["v"]), Some(&Glob::new("press07")));
        selection.add(3, &metrics(&["t", "v"]), None);
        selection
    }

    fn touched(selection: &mut Selection, device: &str, metrics: &[&str]) -> Vec<u32> {
        let metrics: Vec<Arc<str>> = metrics.iter().map(|name| Arc::from(*name)).collect();
        let mut touched = vec![99];
        selection.touched(&ObjectKey::new("default", device), &metrics, &mut touched);
        touched
    }

    #[test]
    fn a_reading_touches_the_rules_that_name_its_metrics_each_once_in_order() {
        let mut selection = selection();
        for _ in 0..2 {
            // The second round is answered by the cache.
            assert_eq!(touched(&mut selection, "press07", &["v", "t"]), [0, 1, 2, 3]);
            assert_eq!(touched(&mut selection, "press07", &["t"]), [0, 1, 3]);
            assert_eq!(touched(&mut selection, "press08", &["v"]), [1, 3]);
            assert_eq!(touched(&mut selection, "pump", &["t", "v", "t"]), [0, 3]);
            assert_eq!(touched(&mut selection, "pump", &["other"]), [0; 0]);
        }
        assert_eq!(selection.cached, 5 * LIST_COST + 4, "what is named by no patterned rule is not cached");
    }

    #[test]
    fn a_device_that_is_gone_leaves_nothing_in_the_cache() {
        let mut selection = selection();
        touched(&mut selection, "press07", &["v", "t"]);
        selection.forget(&ObjectKey::new("default", "press07"));
        selection.forget(&ObjectKey::new("default", "never seen"));
        assert!(selection.cache.is_empty() && selection.cached == 0);
    }

    #[test]
    fn a_full_cache_is_emptied_and_answers_stay_right() {
        let mut selection = selection();
        selection.cached_max = 3 * (LIST_COST + 2);
        for nth in 0..1000 {
            assert_eq!(touched(&mut selection, &format!("press{nth}"), &["v"]), [1, 3]);
            assert_eq!(touched(&mut selection, "press07", &["v"]), [1, 2, 3]);
            assert!(selection.cached <= selection.cached_max && selection.cache.len() <= 3);
        }
    }
}
