//! Topic names and filters: which are valid, which match, and which belong to the gateway.

/// Levels of a filter; the subscription tree is as deep, and walks by recursion.
pub(super) const LEVELS_MAX: usize = 200;

/// Bytes of a topic or filter, as its length field allows.
const BYTES_MAX: usize = 65_535;

/// Where the gateway publishes its alerts.
const ALERTS: &str = "tidegate/alerts";

/// True for a topic that can be published to: not empty, no wildcard, no control character. The standard forbids NUL
/// and lets a server refuse the others; here they would only travel on into logs, keys and object names.
pub(super) fn is_name(topic: &str) -> bool {
    let is_out = |c: char| matches!(c, '+' | '#') || c.is_control();
    !topic.is_empty() && topic.len() <= BYTES_MAX && !topic.contains(is_out)
}

/// True for a well-formed filter: `+` and `#` fill a level, `#` is the last one; no control character.
pub(super) fn is_filter(filter: &str) -> bool {
    if filter.is_empty() || filter.len() > BYTES_MAX || filter.contains(char::is_control) {
        return false;
    }
    let mut levels = filter.split('/').peekable();
    while let Some(level) = levels.next() {
        let is_last = levels.peek().is_none();
        let fits = match level {
            "#" => is_last,
            "+" => true,
            word => !word.contains(['+', '#']),
        };
        if !fits {
            return false;
        }
    }
    true
}

/// True if the filter has more levels than the tree takes.
pub(super) fn is_too_deep(filter: &str) -> bool {
    filter.split('/').nth(LEVELS_MAX).is_some()
}

/// True for `$share/…`: shared subscriptions are not served.
pub(super) fn is_shared(filter: &str) -> bool {
    filter == "$share" || filter.starts_with("$share/")
}

/// True for topics that only the gateway publishes to: its alerts, and all that begin with `$`.
pub(super) fn is_reserved(topic: &str) -> bool {
    let below = |rest: &str| rest.is_empty() || rest.starts_with('/');
    topic.starts_with('$') || topic.strip_prefix(ALERTS).is_some_and(below)
}

/// True if the valid `filter` matches the valid `topic`. A leading wildcard does not match `$…`.
pub(super) fn matches(filter: &str, topic: &str) -> bool {
    if topic.starts_with('$') && filter.starts_with(['+', '#']) {
        return false;
    }
    let mut levels = topic.split('/');
    for wanted in filter.split('/') {
        match (wanted, levels.next()) {
            ("#", _) => return true,
            ("+", Some(_)) => {}
            (word, Some(level)) if word == level => {}
            _ => return false,
        }
    }
    levels.next().is_none()
}

/// What every topic that matches begins with: topics are kept in order, so that a search starts and ends there.
pub(super) fn literal_prefix(filter: &str) -> &str {
    let Some(wildcard) = filter.find(['+', '#']) else { return filter };
    let prefix = filter.get(..wildcard).unwrap_or_default();
    // `a/#` matches `a`, too.
    if filter.ends_with('#') && wildcard + 1 == filter.len() {
        prefix.strip_suffix('/').unwrap_or(prefix)
    } else {
        prefix
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_free_of_wildcards_and_control_characters() {
        for topic in ["a", "/", "a//b", "压力机/温度", " "] {
            assert!(is_name(topic), "{topic:?}");
        }
        for topic in ["", "a/+", "#", "a\0b", "a\n", "\u{9f}", &"x".repeat(65_536)] {
            assert!(!is_name(topic), "{topic:?}");
        }
    }

    #[test]
    fn a_wildcard_fills_its_level_and_the_hash_comes_last() {
        for filter in ["a", "#", "+", "+/+", "a/#", "/", "+/a/#", "$SYS/#"] {
            assert!(is_filter(filter), "{filter:?}");
        }
        for filter in ["", "a/#/b", "a#", "a+", "+a/b", "#/", "a/b#", "a\0", "++"] {
            assert!(!is_filter(filter), "{filter:?}");
        }
    }

    #[test]
    fn filters_match_as_the_standard_says() {
        for (filter, topic) in [
            ("sport/tennis/#", "sport/tennis"),
            ("sport/#", "sport/a/b"),
            ("#", "a/b"),
            ("+/+", "/finance"),
            ("/+", "/finance"),
            ("a/+/c", "a//c"),
            ("$SYS/#", "$SYS/x"),
            ("+/温度", "压力机/温度"),
        ] {
            assert!(matches(filter, topic), "{filter} {topic}");
        }
        for (filter, topic) in [
            ("sport/+", "sport"),
            ("sport/+", "sport/a/b"),
            ("+", "/finance"),
            ("#", "$SYS/x"),
            ("+/x", "$SYS/x"),
            ("a", "a/b"),
            ("a/b", "a"),
            ("a", "A"),
        ] {
            assert!(!matches(filter, topic), "{filter} {topic}");
        }
    }

    #[test]
    fn every_match_begins_with_the_literal_prefix() {
        for (filter, prefix) in [("a/b/+/c", "a/b/"), ("a/b/#", "a/b"), ("#", ""), ("a/b", "a/b"), ("a/+/#", "a/")] {
            assert_eq!(literal_prefix(filter), prefix, "{filter}");
        }
    }

    #[test]
    fn alerts_and_dollar_topics_belong_to_the_gateway() {
        for topic in ["tidegate/alerts", "tidegate/alerts/a/b", "$SYS/x", "$"] {
            assert!(is_reserved(topic), "{topic}");
        }
        for topic in ["tidegate", "tidegate/alertsx", "a/$b", "tidegate/other"] {
            assert!(!is_reserved(topic), "{topic}");
        }
    }

    #[test]
    fn depth_and_shares_are_told() {
        assert!(!is_too_deep(&vec!["a"; LEVELS_MAX].join("/")));
        assert!(is_too_deep(&vec!["a"; LEVELS_MAX + 1].join("/")));
        assert!(is_shared("$share/g/t") && !is_shared("$shared/t"));
    }
}
