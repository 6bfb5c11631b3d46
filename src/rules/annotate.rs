//! Fills the texts of an alert.

use std::fmt::Write;

use super::Facts;
use crate::model::Value;

/// Longest text that comes out.
pub const ANNOTATION_BYTES_MAX: usize = 4096;
/// Stands at the end of a text that was cut.
const CUT: &str = "…";

/// Fills `{device}`, `{value}` and `{<metric>}` into a template.
///
/// `{value}` is `value`, or the metric of that name where there is none. Metrics show their last known value, whatever
/// its quality. A name that nobody knows stays as it is written, with its braces. `{{` is a plain `{`, and the `}}`
/// that closes it a plain `}`. What is filled in is not filled again. At most 4 KiB; a longer text is cut and ends
/// with `…`.
pub fn annotate(template: &str, device: &str, value: Option<&Value>, facts: &dyn Facts) -> String {
    let mut text = Bounded(String::new());
    // The fault of a full text is the end of the work.
    if fill(&mut text, template, device, value, facts).is_err() {
        text.0.push_str(CUT);
    }
    text.0
}

fn fill(
    text: &mut Bounded,
    template: &str,
    device: &str,
    value: Option<&Value>,
    facts: &dyn Facts,
) -> std::fmt::Result {
    let (mut rest, mut escaped) = (template, 0_usize);
    while let Some((plain, brace)) = rest.find(['{', '}']).and_then(|at| rest.split_at_checked(at)) {
        text.write_str(plain)?;
        if let Some(after) = brace.strip_prefix("{{") {
            text.write_char('{')?;
            escaped += 1;
            rest = after;
        } else if escaped > 0
            && let Some(after) = brace.strip_prefix("}}")
        {
            text.write_char('}')?;
            escaped -= 1;
            rest = after;
        } else if let Some((name, after)) = placeholder(brace)
            && write_named(text, name, device, value, facts)?
        {
            rest = after;
        } else {
            let (sign, after) = brace.split_at_checked(1).unwrap_or((brace, ""));
            text.write_str(sign)?;
            rest = after;
        }
    }
    text.write_str(rest)
}

/// The name between the braces that `text` starts with, and what follows them.
fn placeholder(text: &str) -> Option<(&str, &str)> {
    let (name, after) = text.strip_prefix('{')?.split_once('}')?;
    (!name.is_empty() && !name.contains('{')).then_some((name, after))
}

/// Writes what a name stands for; false if nobody knows it.
fn write_named(
    text: &mut Bounded,
    name: &str,
    device: &str,
    value: Option<&Value>,
    facts: &dyn Facts,
) -> Result<bool, std::fmt::Error> {
    let value = if name == "value" { value } else { None };
    match value.or_else(|| facts.metric(name).map(|(value, _)| value)) {
        _ if name == "device" => text.write_str(device)?,
        Some(value) => write!(text, "{value}")?,
        None => return Ok(false),
    }
    Ok(true)
}

/// Takes text until it is full, with room for the mark of a cut.
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let room = ANNOTATION_BYTES_MAX - CUT.len() - self.0.len();
        if text.len() <= room {
            self.0.push_str(text);
            return Ok(());
        }
        let fits = text.get(..text.floor_char_boundary(room)).unwrap_or_default();
        self.0.push_str(fits);
        Err(std::fmt::Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Quality;
    use crate::rules::fixtures::Twin;

    fn filled(template: &str) -> String {
        let facts = Twin::new()
            .with("temperature", Value::F64(81.5))
            .with("am2301.humidity", Value::I64(40))
            .with("value", Value::I64(7))
            .with("device", Value::I64(8))
            .with("note", Value::Text("{device}".into()))
            .told("bad", Value::I64(3), Quality::Bad);
        annotate(template, "hall/door 4", Some(&Value::F64(82.0)), &facts)
    }

    #[test]
    fn known_names_are_filled_in_once() {
        assert_eq!(filled("{device} at {temperature} Cel, {value}"), "hall/door 4 at 81.5 Cel, 82");
        assert_eq!(filled("{am2301.humidity}{bad}"), "403");
        assert_eq!(filled("{note}"), "{device}", "what is filled in is not filled again");
        assert_eq!(filled(""), "");
    }

    #[test]
    fn the_value_falls_back_to_the_metric_of_that_name() {
        let facts = Twin::new().with("value", Value::I64(7));
        assert_eq!(annotate("{value}", "d", None, &facts), "7");
        assert_eq!(annotate("{value}", "d", None, &Twin::new()), "{value}");
    }

    #[test]
    fn what_nobody_knows_stays_as_written() {
        for text in ["{nothing}", "{", "}", "{}", "a{", "{a", "{a{b}", "}}", "{\"a\":{\"b\":1}}", "é{ü}", "{ value }"]
        {
            assert_eq!(filled(text), text);
        }
        assert_eq!(filled("{a{temperature}"), "{a81.5");
        assert_eq!(filled("{nothing}{temperature}"), "{nothing}81.5");
    }

    #[test]
    fn doubled_braces_are_plain_ones() {
        assert_eq!(filled("{{device}}"), "{device}");
        assert_eq!(filled("{{{device}}}"), "{hall/door 4}");
        assert_eq!(filled("{{"), "{");
    }

    #[test]
    fn a_text_is_cut_at_4_kib_between_characters() {
        let facts = Twin::new().with("long", Value::Text("é".repeat(5000).into()));
        for template in ["{long}".to_owned(), "é".repeat(5000), "x{long}{long}".to_owned(), "{".repeat(9999)] {
            let text = annotate(&template, "d", None, &facts);
            assert!(text.len() <= ANNOTATION_BYTES_MAX && text.len() >= ANNOTATION_BYTES_MAX - 2, "{}", text.len());
            assert!(text.ends_with(CUT));
        }
        let whole = "x".repeat(ANNOTATION_BYTES_MAX - CUT.len());
        assert_eq!(annotate(&whole, "d", None, &facts), whole);
    }
}
