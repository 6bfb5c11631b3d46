//! What is wrong with a set of rules, where, and how it is mended.

use std::fmt;
use std::sync::Arc;

/// Faults that [`RuleErrors`] prints; the rest is counted.
const FAULTS_PRINTED_MAX: usize = 20;
/// Characters of the line that an excerpt shows.
const EXCERPT_CHARS_MAX: usize = 80;
/// Of these, how many stand before the caret where the line is longer.
const EXCERPT_CHARS_BEFORE: usize = 40;

/// Everything that is wrong with a set of rules, in the order of the rules; never empty.
///
/// Display prints one fault per paragraph, the first 20.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleErrors(Vec<RuleError>);

impl RuleErrors {
    pub(super) fn new(fault: RuleError) -> Self {
        Self(vec![fault])
    }

    /// `Err` with the faults, `Ok` where there is none.
    pub(super) fn check(faults: Vec<RuleError>) -> Result<(), Self> {
        if faults.is_empty() { Ok(()) } else { Err(Self(faults)) }
    }

    /// The faults in the order of the rules.
    pub fn errors(&self) -> &[RuleError] {
        &self.0
    }
}

impl fmt::Display for RuleErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, fault) in self.0.iter().take(FAULTS_PRINTED_MAX).enumerate() {
            let gap = if nth == 0 { "" } else { "\n" };
            write!(f, "{gap}{fault}")?;
        }
        match self.0.len().saturating_sub(FAULTS_PRINTED_MAX) {
            0 => Ok(()),
            more => write!(f, "\nand {more} more"),
        }
    }
}

impl std::error::Error for RuleErrors {}

/// What is wrong with one rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// More rules than the engine takes.
    #[error(
        "{count} alert rules are more than {max}; remove some, or let one rule stand for several devices with on = \"press*\""
    )]
    TooMany {
        /// Rules that were given.
        count: usize,
        /// Rules that are taken.
        max: usize,
    },
    /// A rule without a name.
    #[error("alert rule number {position} has no name; give it one, as in alert = \"PressOverTemp\"")]
    NameMissing {
        /// Its place in the list, from 1.
        position: usize,
    },
    /// Two rules of one name.
    #[error("alert {rule:?} is there twice; rename one of the two")]
    NameTwice {
        /// The name.
        rule: Arc<str>,
    },
    /// A condition that no reading could change.
    #[error(
        "alert {rule:?} names no metric, so that no reading would ever evaluate it; name one, as in temperature > 80"
    )]
    NoMetric {
        /// The name.
        rule: Arc<str>,
    },
    /// A device pattern that cannot match anything, or is too long.
    #[error("alert {rule:?}: {what}")]
    Pattern {
        /// Name of the rule.
        rule: Arc<str>,
        /// What is wrong, and the mend.
        what: String,
    },
    /// `hysteresis` is no distance, or the expression has no threshold that it could move.
    #[error("alert {rule:?}: {what}")]
    Hysteresis {
        /// Name of the rule.
        rule: Arc<str>,
        /// What is wrong, and the mend.
        what: String,
    },
    /// The expression.
    #[error("alert {rule:?}: {fault}")]
    Expression {
        /// Name of the rule.
        rule: Arc<str>,
        /// What is wrong with it.
        fault: Fault,
    },
}

impl RuleError {
    /// The name of the rule and the key of it that is wrong; none if the list as a whole is.
    pub fn at(&self) -> Option<(&str, &'static str)> {
        match self {
            Self::TooMany { .. } | Self::NameMissing { .. } => None,
            Self::NameTwice { rule } => Some((rule, "alert")),
            Self::NoMetric { rule } | Self::Expression { rule, .. } => Some((rule, "expr")),
            Self::Pattern { rule, .. } => Some((rule, "on")),
            Self::Hysteresis { rule, .. } => Some((rule, "hysteresis")),
        }
    }
}

/// The kinds of [`Fault`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// No CEL at all.
    Syntax,
    /// CEL that the gateway does not take.
    Unsupported,
    /// Longer, deeper or of more parts than is taken.
    Limit,
    /// Could never be true, or decides nothing.
    Meaning,
}

/// What is wrong with an expression. Display is the message, the mend, and two lines: the text and a caret below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What kind.
    pub kind: FaultKind,
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
    /// How it is mended.
    pub mend: String,
    excerpt: String,
    caret: usize,
}

impl Fault {
    pub(super) fn new(text: &str, flaw: Flaw) -> Self {
        let (before, _) = text.split_at_checked(flaw.at).unwrap_or((text, ""));
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let line = text.get(line_start..).unwrap_or_default().lines().next().unwrap_or_default();
        let column = before.get(line_start..).unwrap_or_default().chars().count();
        let cut =
            if line.chars().count() > EXCERPT_CHARS_MAX { column.saturating_sub(EXCERPT_CHARS_BEFORE) } else { 0 };
        // A control character would move the caret, or the terminal's mind.
        let plain = |c: char| if c.is_control() { ' ' } else { c };
        Self {
            kind: flaw.kind,
            line: before.matches('\n').count() + 1,
            column: column + 1,
            message: flaw.message,
            mend: flaw.mend,
            excerpt: line.chars().skip(cut).take(EXCERPT_CHARS_MAX).map(plain).collect(),
            caret: column - cut,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, column, message, mend, excerpt, caret, .. } = self;
        write!(f, "{message} (line {line}, column {column}); {mend}\n  {excerpt}\n  {:caret$}^", "")
    }
}

/// A fault before its place is looked up in the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Flaw {
    pub(super) kind: FaultKind,
    /// Byte offset.
    pub(super) at: usize,
    pub(super) message: String,
    pub(super) mend: String,
}

impl Flaw {
    pub(super) fn syntax(at: usize, message: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { kind: FaultKind::Syntax, at, message: message.into(), mend: mend.into() }
    }

    pub(super) fn unsupported(at: usize, what: impl fmt::Display, mend: impl Into<String>) -> Self {
        let message = format!("{what} is not supported");
        Self { kind: FaultKind::Unsupported, at, message, mend: mend.into() }
    }

    pub(super) fn limit(at: usize, message: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { kind: FaultKind::Limit, at, message: message.into(), mend: mend.into() }
    }

    pub(super) fn meaning(at: usize, message: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { kind: FaultKind::Meaning, at, message: message.into(), mend: mend.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_shows_its_line_with_a_caret_below_the_place() {
        let text = "running &&\n  température > 80";
        let at = text.find('>').unwrap_or_default();
        let fault = Fault::new(text, Flaw::syntax(at, "it is wrong", "mend it"));
        assert_eq!((fault.line, fault.column), (2, 15));
        let lines = "it is wrong (line 2, column 15); mend it\n    température > 80\n                ^";
        assert_eq!(fault.to_string(), lines);
    }

    #[test]
    fn a_long_line_is_cut_around_the_caret_and_controls_are_blanked() {
        let text = format!("{}\u{1b}?{}", "a".repeat(100), "b".repeat(100));
        let shown = Fault::new(&text, Flaw::syntax(101, "x", "y")).to_string();
        let lines: Vec<&str> = shown.lines().collect();
        assert!(!shown.contains('\u{1b}'));
        assert_eq!(lines.get(1).map(|line| line.len()), Some(82));
        let caret = lines.get(2).and_then(|line| line.find('^'));
        assert_eq!(caret, lines.get(1).and_then(|line| line.find('?')));
    }

    #[test]
    fn a_place_at_or_beyond_the_end_is_no_panic() {
        for at in [0, 1, 2, 99] {
            assert!(Fault::new("é", Flaw::syntax(at, "x", "y")).to_string().ends_with('^'));
        }
    }

    #[test]
    fn many_faults_are_printed_in_part_and_counted() {
        let faults = (1..=23).map(|position| RuleError::NameMissing { position }).collect();
        let Err(errors) = RuleErrors::check(faults) else { panic!("there are faults") };
        let shown = errors.to_string();
        assert_eq!(shown.lines().count(), 21);
        assert!(shown.ends_with("\nand 3 more"), "{shown}");
        assert!(RuleErrors::check(Vec::new()).is_ok());
    }
}
