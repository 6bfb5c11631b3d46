//! Patterns for device names: `*` stands for any characters, also none; everything else for itself.

use std::sync::Arc;

/// A device-name pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Glob(Arc<str>);

impl Glob {
    pub(super) fn new(pattern: &str) -> Self {
        Self(pattern.into())
    }

    /// True if the whole name fits. Without recursion: on a mismatch only the newest `*` takes one character more,
    /// so that the time is at most length times length. Bytes do for UTF-8: no character is a part of another.
    pub(super) fn matches(&self, name: &str) -> bool {
        let (pattern, name) = (self.0.as_bytes(), name.as_bytes());
        let (mut p, mut n) = (0, 0);
        // Behind the newest star, and where in the name it may stop next.
        let mut star: Option<(usize, usize)> = None;
        while let Some(byte) = name.get(n) {
            match pattern.get(p) {
                Some(b'*') => {
                    p += 1;
                    star = Some((p, n));
                }
                Some(wanted) if wanted == byte => {
                    p += 1;
                    n += 1;
                }
                _ => {
                    let Some((behind, stop)) = star else { return false };
                    (p, n) = (behind, stop + 1);
                    star = Some((behind, stop + 1));
                }
            }
        }
        pattern.iter().skip(p).all(|byte| *byte == b'*')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_takes_any_characters_also_none() {
        for (pattern, name, expected) in [
            ("press07", "press07", true),
            ("press07", "press070", false),
            ("press07", "press0", false),
            ("press*", "press", true),
            ("press*", "press07", true),
            ("press*", "Press07", false),
            ("*", "", true),
            ("*", "hall/door 4", true),
            ("*door*", "hall/door 4", true),
            ("*-07", "line1-07-07", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("**a**", "a", true),
            ("a*", "ba", false),
            ("压*机", "压力机", true),
            ("é", "è", false),
            ("?", "a", false),
            ("[a]", "[a]", true),
            ("a*a", "a", false),
        ] {
            assert_eq!(Glob::new(pattern).matches(name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn many_stars_do_not_take_for_ever() {
        let pattern = format!("{}b", "a*".repeat(500));
        assert!(!Glob::new(&pattern).matches(&"a".repeat(2000)));
    }
}
