//! From a topic to the device and metric it is about.
//!
//! Sources are tried in their order, of each its availability topic before its data topic; the first that matches
//! wins. The answer is kept for each topic, also that there is none, so that a message costs one look-up: at most
//! 10 000 topics of at most 512 bytes; others are matched anew.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::decode::CompiledSource;
use crate::config::{PathError, PatternError, Source, TopicPattern};
use crate::model::ObjectKey;

/// All sources, compiled.
#[derive(Debug)]
pub struct Mapping {
    namespace: Arc<str>,
    sources: Vec<Entry>,
    cache: Cache,
}

/// What a message of a topic is about.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    /// Index of the source in the configuration.
    pub source: usize,
    /// What the message tells.
    pub role: Role,
    /// The device.
    pub device: ObjectKey,
    /// What the topic's `{metric}` took.
    pub metric: Option<Arc<str>>,
    /// Labels of the source and what its other placeholders took; a placeholder that took nothing is left out.
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
}

/// What a message tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Readings.
    Data,
    /// Whether the device is online.
    Online,
}

/// A source that cannot be compiled. The checks of `config` let none through.
#[derive(Debug, thiserror::Error)]
pub enum MappingError {
    /// Its topic or its availability topic.
    #[error("topic {topic:?} of [[source]] {index} cannot be used")]
    Topic {
        /// Index of the source.
        index: usize,
        /// The topic as written.
        topic: String,
        /// Why.
        #[source]
        source: PatternError,
    },
    /// One of its paths.
    #[error("path {path:?} of [[source]] {index} cannot be used")]
    Path {
        /// Index of the source.
        index: usize,
        /// The path as written.
        path: String,
        /// Why.
        #[source]
        source: PathError,
    },
    /// Neither the topic nor the source tells the device.
    #[error("[[source]] {index} does not tell the device; put {{device}} into its topic, or add a line `device = ...`")]
    NoDevice {
        /// Index of the source.
        index: usize,
    },
}

/// Longest device or metric that a topic can name, in bytes.
const NAME_BYTES_MAX: usize = 512;

impl Mapping {
    /// Compiles the sources of a configuration; `namespace` is `gateway.namespace`.
    pub fn compile(sources: &[Source], namespace: &str) -> Result<Self, MappingError> {
        let sources =
            sources.iter().enumerate().map(|(i, source)| Entry::compile(i, source)).collect::<Result<_, _>>()?;
        Ok(Self { namespace: namespace.into(), sources, cache: Cache::new() })
    }

    /// What a topic is about; none if no source takes it.
    pub fn resolve(&mut self, topic: &str) -> Option<Arc<Target>> {
        if let Some(Answer(target)) = self.cache.get(topic) {
            return target;
        }
        let target = self.find(topic).map(Arc::new);
        self.cache.put(topic, Answer(target.clone()));
        target
    }

    /// A compiled source by its index in the configuration.
    pub fn source(&self, index: usize) -> Option<&CompiledSource> {
        self.sources.get(index).map(|entry| &entry.source)
    }

    /// Topics whose answer is kept.
    pub fn cached(&self) -> usize {
        self.cache.young.len() + self.cache.old.len()
    }

    fn find(&self, topic: &str) -> Option<Target> {
        // The gateway's own alerts are no readings.
        if topic == "tidegate/alerts" || topic.starts_with("tidegate/alerts/") {
            return None;
        }
        self.sources.iter().enumerate().find_map(|(i, entry)| {
            let online = || entry.online.as_ref().and_then(|pattern| self.target(i, Role::Online, pattern, topic));
            online().or_else(|| self.target(i, Role::Data, &entry.data, topic))
        })
    }

    fn target(&self, index: usize, role: Role, pattern: &TopicPattern, topic: &str) -> Option<Target> {
        let entry = self.sources.get(index)?;
        let mut device = entry.device.clone();
        let mut metric = None;
        let mut labels = entry.labels.clone();
        for (name, text) in pattern.matches(topic)? {
            match &**name {
                "device" | "metric" if text.is_empty() || text.len() > NAME_BYTES_MAX => return None,
                "device" => device = Some(text.into()),
                "metric" => metric = Some(text.into()),
                _ if text.is_empty() => {}
                _ => {
                    labels.insert(name.clone(), text.into());
                }
            }
        }
        let device = ObjectKey::new(self.namespace.clone(), device?);
        Some(Target { source: index, role, device, metric, labels })
    }
}

/// A source with its patterns.
#[derive(Debug)]
struct Entry {
    data: TopicPattern,
    online: Option<TopicPattern>,
    device: Option<Arc<str>>,
    labels: BTreeMap<Arc<str>, Arc<str>>,
    source: CompiledSource,
}

impl Entry {
    fn compile(index: usize, source: &Source) -> Result<Self, MappingError> {
        let pattern = |topic: &str| {
            TopicPattern::parse(topic).map_err(|source| MappingError::Topic { index, topic: topic.to_owned(), source })
        };
        let data = pattern(&source.topic)?;
        if source.device.is_none() && !data.names().any(|name| name == "device") {
            return Err(MappingError::NoDevice { index });
        }
        let compiled =
            CompiledSource::compile(source).map_err(|(path, source)| MappingError::Path { index, path, source })?;
        Ok(Self {
            data,
            online: source.online.as_ref().map(|online| pattern(&online.topic)).transpose()?,
            device: source.device.clone(),
            labels: source.labels.clone(),
            source: compiled,
        })
    }
}

/// Topics of one generation; two are kept.
const GENERATION_MAX: usize = 5000;
/// Longest topic that is kept, in bytes.
const TOPIC_BYTES_MAX: usize = 512;

/// The newest answers: a topic that is asked for again moves to the young generation; when that is full, the old one
/// is dropped.
#[derive(Debug)]
struct Cache {
    young: HashMap<Box<str>, Answer>,
    old: HashMap<Box<str>, Answer>,
}

/// What a topic is about, or that no source takes it.
#[derive(Debug, Clone)]
struct Answer(Option<Arc<Target>>);

impl Cache {
    fn new() -> Self {
        Self { young: HashMap::new(), old: HashMap::new() }
    }

    fn get(&mut self, topic: &str) -> Option<Answer> {
        if let Some(answer) = self.young.get(topic) {
            return Some(answer.clone());
        }
        let (topic, answer) = self.old.remove_entry(topic)?;
        self.put_owned(topic, answer.clone());
        Some(answer)
    }

    fn put(&mut self, topic: &str, answer: Answer) {
        if topic.len() <= TOPIC_BYTES_MAX {
            self.put_owned(topic.into(), answer);
        }
    }

    fn put_owned(&mut self, topic: Box<str>, answer: Answer) {
        if self.young.len() == GENERATION_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(topic, answer);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::*;

    fn mapping(sources: &str) -> Mapping {
        #[derive(serde::Deserialize)]
        struct Sources {
            source: Vec<Source>,
        }
        let sources: Sources = toml::from_str(sources).unwrap();
        Mapping::compile(&sources.source, "default").unwrap()
    }

    const PLANT: &str = r#"
        [[source]]
        topic = "z/{device...}"
        online.topic = "z/{device...}/availability"
        [[source]]
        topic = "plant/{line}/{device}/{metric}"
        labels = { site = "muc1" }
        [[source]]
        topic = "plc/#"
        device = "plc1"
        [[source]]
        topic = "{area}/{device}/{metric}"
    "#;

    #[test]
    fn the_first_source_that_matches_wins_and_placeholders_become_labels() {
        let mut mapping = mapping(PLANT);
        let target = mapping.resolve("plant/l1/press07/temperature").unwrap();
        assert_eq!((target.source, target.role), (1, Role::Data));
        assert_eq!(target.device.to_string(), "default/press07");
        assert_eq!(target.metric.as_deref(), Some("temperature"));
        let labels: Vec<(&str, &str)> = target.labels.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(labels, [("line", "l1"), ("site", "muc1")]);
        assert_eq!(mapping.resolve("plc/db1/word12").unwrap().device.to_string(), "default/plc1");
        assert_eq!(mapping.resolve("a/b/c").unwrap().source, 3);
        assert_eq!(mapping.resolve("a/b"), None);
    }

    #[test]
    fn an_availability_topic_is_tried_before_the_data_topic_of_its_source() {
        let mut mapping = mapping(PLANT);
        let online = mapping.resolve("z/hall/door 4/availability").unwrap();
        assert_eq!((online.role, online.device.to_string().as_str()), (Role::Online, "default/hall/door 4"));
        let data = mapping.resolve("z/hall/door 4").unwrap();
        assert_eq!((data.role, data.device.to_string().as_str()), (Role::Data, "default/hall/door 4"));
    }

    #[test]
    fn a_level_without_text_names_no_device_and_no_label() {
        let mut mapping = mapping(PLANT);
        assert_eq!(mapping.resolve("z/"), None);
        assert_eq!(mapping.resolve("plant/l1//temperature"), None);
        assert!(!mapping.resolve("/b/c").unwrap().labels.contains_key("area"));
        assert_eq!(mapping.resolve(&format!("z/{}", "x".repeat(513))), None);
    }

    #[test]
    fn own_alerts_and_dollar_topics_are_never_mapped() {
        let mut mapping = mapping("[[source]]\ntopic = \"#\"\ndevice = \"all\"\n");
        for topic in ["tidegate/alerts/Hot/press07", "tidegate/alerts", "$SYS/broker/uptime"] {
            assert_eq!(mapping.resolve(topic), None, "{topic}");
        }
        assert!(mapping.resolve("tidegate/alertsx").is_some());
    }

    #[test]
    fn answers_are_kept_within_the_bound_also_when_there_is_none() {
        let mut mapping = mapping(PLANT);
        assert_eq!(mapping.resolve("none"), None);
        let kept = mapping.resolve("a/b/c").unwrap();
        assert_eq!(mapping.cached(), 2);
        assert!(Arc::ptr_eq(&kept, &mapping.resolve("a/b/c").unwrap()));
        for i in 0..25_000 {
            assert!(mapping.resolve(&format!("a/b/{i}")).is_some());
            assert!(mapping.cached() <= 2 * GENERATION_MAX);
            if i % 1000 == 0 {
                assert!(Arc::ptr_eq(&kept, &mapping.resolve("a/b/c").unwrap()), "a topic in use stays");
            }
        }
        let long = format!("a/b/{}", "x".repeat(512));
        let before = mapping.cached();
        assert!(mapping.resolve(&long).is_some());
        assert_eq!(mapping.cached(), before);
    }

    #[test]
    fn what_the_checks_would_refuse_is_an_error_here_too() {
        for (source, wanted) in [
            ("topic = \"a/x{device}\"", "topic \"a/x{device}\" of [[source]] 0 cannot be used"),
            ("topic = \"a\"", "does not tell the device"),
            ("topic = \"{device}\"\nroot = \"a..b\"", "path \"a..b\" of [[source]] 0 cannot be used"),
        ] {
            let source: Source = toml::from_str(source).unwrap();
            let error = Mapping::compile(&[source], "default").unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
