//! Label and field selectors, as their texts stand in a query.

use kube::core::{Expression, Selector, SelectorExt as _};

use super::failure::Failure;
use super::object::{is_label_key, is_label_value, labels};
use crate::model::{Record, kube_name};

/// Which objects of a kind a client asked for.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Filter {
    /// By labels; they may change during an object's life.
    pub(super) labels: Selector,
    /// Namespace and name; they never change.
    pub(super) fields: Fields,
}

/// Terms on fields. Only names are selectable.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Fields(Vec<FieldTerm>);

impl Filter {
    /// Reads both texts of a query.
    pub(super) fn parse(label_selector: &str, field_selector: &str) -> Result<Self, Failure> {
        let labels = parse_labels(label_selector).map_err(|reason| {
            Failure::bad_request(format!("unable to parse labelSelector {label_selector:?}: {reason}"))
        })?;
        Ok(Self { labels, fields: Fields::parse(field_selector)? })
    }

    /// True if the record is in; a deletion has no labels to go by.
    pub(super) fn matches(&self, record: &Record, gateway: &str) -> bool {
        self.fields.matches(record) && (self.labels.selects_all() || self.labels.matches(&labels(record, gateway)))
    }
}

impl Fields {
    fn parse(text: &str) -> Result<Self, Failure> {
        let terms = text.split(',').map(str::trim).filter(|term| !term.is_empty());
        Ok(Self(terms.map(FieldTerm::parse).collect::<Result<_, _>>()?))
    }

    /// True if name and namespace fit.
    pub(super) fn matches(&self, record: &Record) -> bool {
        self.0.iter().all(|term| term.matches(record))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct FieldTerm {
    field: Field,
    value: String,
    equal: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Field {
    Name,
    Namespace,
}

impl FieldTerm {
    fn parse(term: &str) -> Result<Self, Failure> {
        let (field, value, equal) = if let Some((field, value)) = term.split_once("!=") {
            (field, value, false)
        } else if let Some((field, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
            (field, value, true)
        } else {
            return Err(Failure::bad_request(format!("fieldSelector {term:?} has no = or !=")));
        };
        let field = match field.trim() {
            "metadata.name" => Field::Name,
            "metadata.namespace" => Field::Namespace,
            other => {
                let known = "only metadata.name and metadata.namespace are supported";
                return Err(Failure::bad_request(format!("field label not supported: {other}; {known}")));
            }
        };
        Ok(Self { field, value: value.trim().to_owned(), equal })
    }

    fn matches(&self, record: &Record) -> bool {
        let same = match self.field {
            Field::Name => kube_name(record.key.name()) == self.value,
            Field::Namespace => **record.key.namespace() == *self.value,
        };
        same == self.equal
    }
}

/// Reads `a=b,c!=d,e in (f,g),!h`; empty selects all.
fn parse_labels(text: &str) -> Result<Selector, String> {
    split_terms(text)?.into_iter().map(parse_term).collect()
}

/// Splits at the commas that stand outside of parentheses.
fn split_terms(text: &str) -> Result<Vec<&str>, String> {
    let mut terms = Vec::new();
    let (mut depth, mut start) = (0_u32, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.checked_sub(1).ok_or("a ) without its (")?,
            ',' if depth == 0 => {
                terms.push(text.get(start..at).unwrap_or_default());
                start = at + 1;
            }
            _ => {}
        }
    }
    if depth != 0 {
        return Err("a ( without its )".to_owned());
    }
    terms.push(text.get(start..).unwrap_or_default());
    let blank = |term: &&str| term.trim().is_empty();
    if terms.len() > 1 && terms.iter().any(blank) {
        return Err("an empty term".to_owned());
    }
    terms.retain(|term| !blank(term));
    Ok(terms)
}

fn parse_term(term: &str) -> Result<Expression, String> {
    let term = term.trim();
    if term.ends_with(')') {
        return parse_set(term);
    }
    if let Some((key, value)) = term.split_once("!=") {
        return Ok(Expression::NotEqual(key_of(key)?, value_of(value)?));
    }
    if let Some((key, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
        return Ok(Expression::Equal(key_of(key)?, value_of(value)?));
    }
    match term.strip_prefix('!') {
        Some(key) => Ok(Expression::DoesNotExist(key_of(key)?)),
        None => Ok(Expression::Exists(key_of(term)?)),
    }
}

/// Reads `key in (a, b)` and `key notin (a, b)`.
fn parse_set(term: &str) -> Result<Expression, String> {
    let wrong = || format!("{term:?} is neither `key in (a,b)` nor `key notin (a,b)`");
    let (head, values) = term.strip_suffix(')').and_then(|term| term.split_once('(')).ok_or_else(wrong)?;
    let (key, verb) = head.trim().rsplit_once(char::is_whitespace).ok_or_else(wrong)?;
    let values = values.split(',').map(value_of).collect::<Result<_, _>>()?;
    match verb {
        "in" => Ok(Expression::In(key_of(key)?, values)),
        "notin" => Ok(Expression::NotIn(key_of(key)?, values)),
        _ => Err(wrong()),
    }
}

fn key_of(text: &str) -> Result<String, String> {
    let key = text.trim();
    if is_label_key(key) { Ok(key.to_owned()) } else { Err(format!("{key:?} is not a label key")) }
}

fn value_of(text: &str) -> Result<String, String> {
    let value = text.trim();
    if is_label_value(value) { Ok(value.to_owned()) } else { Err(format!("{value:?} is not a label value")) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::*;
    use crate::model::Lane;
    use crate::serve::object::tests::record;

    fn selects(selector: &str, labels: &str) -> bool {
        let record = record(Lane::State, "press07", 2, &format!("{{\"labels\":{labels}}}"));
        Filter::parse(selector, "").unwrap().matches(&record, "gw-1")
    }

    #[test]
    fn every_operator_selects_as_kubernetes_does() {
        let north = r#"{"hall":"north"}"#;
        for selector in [
            "",
            "hall=north",
            "hall==north",
            " hall = north ",
            "hall!=south",
            "line!=2",
            "hall in (south, north)",
            "hall notin (south)",
            "line notin (2)",
            "hall",
            "!line",
            "hall=north,!line,hall in (north),tidegate.dev/gateway=gw-1",
        ] {
            assert!(selects(selector, north), "{selector}");
        }
        for selector in ["hall=south", "hall!=north", "hall in (south)", "hall notin (north)", "line", "!hall"] {
            assert!(!selects(selector, north), "{selector}");
        }
    }

    #[test]
    fn a_selector_that_cannot_be_read_is_a_bad_request() {
        for selector in
            ["hall in north)", "hall in (north", "a,,b", "=x", "a b", "a=b c", "x among (a)", "(a)", "in (a)"]
        {
            let failure = Filter::parse(selector, "").unwrap_err();
            assert_eq!(failure.status().code, Some(400), "{selector}");
        }
    }

    #[test]
    fn fields_select_by_name_and_namespace_only() {
        let door = record(Lane::State, "hall/door 4", 2, "{}");
        let name = kube_name("hall/door 4");
        for (selector, wanted) in [
            (format!("metadata.name={name}"), true),
            (format!("metadata.name=={name},metadata.namespace=default"), true),
            ("metadata.name=hall/door 4".to_owned(), false),
            (format!("metadata.name!={name}"), false),
            ("metadata.namespace=other".to_owned(), false),
        ] {
            assert_eq!(Filter::parse("", &selector).unwrap().matches(&door, "gw-1"), wanted, "{selector}");
        }
        let message = Filter::parse("", "status.online=true").unwrap_err().status().message.clone().unwrap();
        assert!(message.contains("status.online") && message.contains("metadata.name"), "{message}");
        assert!(Filter::parse("", "metadata.name").is_err());
    }
}
