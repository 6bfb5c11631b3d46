//! A compiled expression: flat, without jumps, its metrics in slots. Evaluation allocates nothing and cannot fail.

use std::sync::Arc;

use super::Facts;
use super::truth::{Comparison, Operand, Truth};
use crate::model::{Quality, Value};

/// Conditions that may wait at a time for their operator; the parser's nesting limit keeps programs below it.
pub(super) const STACK_MAX: usize = 128;

/// One condition.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Program {
    /// In the order of evaluation.
    pub(super) ops: Vec<Op>,
    pub(super) literals: Vec<Value>,
    /// Each name once, in the order of appearance.
    pub(super) metrics: Vec<Arc<str>>,
}

/// One step. Each leaves one condition on the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    /// The value itself is the condition.
    Test(Source),
    Not(Source),
    And(Source, Source),
    Or(Source, Source),
    Compare(Comparison, Source, Source),
}

/// Where a step finds an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// The outcome of an earlier step, taken off the stack.
    Stack,
    /// A slot of `metrics`.
    Metric(u16),
    /// A slot of `literals`.
    Literal(u16),
}

/// Outcome of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Evaluation {
    pub(super) truth: Truth,
    /// The device lacks a metric that the expression names.
    pub(super) lacks_metric: bool,
}

impl Program {
    /// Evaluates over what is known of a device. Every metric is looked at, so that a lacking one is always told.
    pub(super) fn evaluate(&self, facts: &dyn Facts) -> Evaluation {
        let mut run = Run { program: self, facts, stack: Stack::new(), lacks_metric: false };
        for op in &self.ops {
            run.step(*op);
        }
        Evaluation { truth: run.stack.pop(), lacks_metric: run.lacks_metric }
    }

    /// The metric whose value is told along with a transition: the only one that is named, or the left one of a
    /// single comparison.
    pub(super) fn decider(&self) -> Option<&Arc<str>> {
        match (&*self.metrics, &*self.ops) {
            ([only], _) => Some(only),
            (several, [Op::Compare(..)]) => several.first(),
            _ => None,
        }
    }

    /// The condition that holds until the value has gone back by `distance`, which is finite and above zero: the same
    /// comparison with its threshold moved. None where the expression is not one ordering of a metric and a number,
    /// or the moved threshold is beyond all numbers.
    pub(super) fn released_by(&self, distance: f64) -> Option<Self> {
        let (op, slot) = match *self.ops {
            [Op::Compare(op, Source::Metric(_), Source::Literal(slot))] => (op, slot),
            [Op::Compare(op, Source::Literal(slot), Source::Metric(_))] => (op.mirrored(), slot),
            _ => return None,
        };
        let by = match op {
            Comparison::Greater | Comparison::GreaterOrEqual => -distance,
            Comparison::Less | Comparison::LessOrEqual => distance,
            Comparison::Equal | Comparison::NotEqual => return None,
        };
        let mut moved = self.clone();
        let threshold = moved.literals.get_mut(usize::from(slot))?;
        *threshold = move_number(threshold, by)?;
        Some(moved)
    }
}

/// A running evaluation.
struct Run<'r> {
    program: &'r Program,
    facts: &'r dyn Facts,
    stack: Stack,
    lacks_metric: bool,
}

impl<'r> Run<'r> {
    fn step(&mut self, op: Op) {
        // The right operand lies on top of the left one.
        let truth = match op {
            Op::Test(source) => self.load(source).truth(),
            Op::Not(source) => !self.load(source).truth(),
            Op::And(left, right) => {
                let right = self.load(right).truth();
                self.load(left).truth().and(right)
            }
            Op::Or(left, right) => {
                let right = self.load(right).truth();
                self.load(left).truth().or(right)
            }
            Op::Compare(comparison, left, right) => {
                let right = self.load(right);
                comparison.apply(self.load(left), right)
            }
        };
        self.stack.push(truth);
    }

    fn load(&mut self, source: Source) -> Operand<'r> {
        match source {
            Source::Stack => self.stack.pop().into(),
            Source::Literal(slot) => self.program.literals.get(usize::from(slot)).map_or(Operand::Unknown, Into::into),
            Source::Metric(slot) => self.metric(slot),
        }
    }

    fn metric(&mut self, slot: u16) -> Operand<'r> {
        let name = self.program.metrics.get(usize::from(slot));
        match name.and_then(|name| self.facts.metric(name)) {
            Some((value, Quality::Good)) => value.into(),
            Some((_, Quality::Uncertain | Quality::Bad)) => Operand::Unknown,
            None => {
                self.lacks_metric = true;
                Operand::Unknown
            }
        }
    }
}

/// The conditions that wait for their operator.
struct Stack {
    items: [Truth; STACK_MAX],
    len: usize,
}

impl Stack {
    fn new() -> Self {
        Self { items: [Truth::Unknown; STACK_MAX], len: 0 }
    }

    /// The parser refuses what would not fit; a slip there shows as unknown, which neither raises nor clears.
    fn push(&mut self, truth: Truth) {
        debug_assert!(self.len < STACK_MAX, "the parser bounds the stack");
        if let Some(slot) = self.items.get_mut(self.len) {
            *slot = truth;
            self.len += 1;
        }
    }

    fn pop(&mut self) -> Truth {
        debug_assert!(self.len > 0, "each operand was pushed");
        self.len = self.len.saturating_sub(1);
        self.items.get(self.len).copied().unwrap_or(Truth::Unknown)
    }
}

/// Adds as people do on paper: whole numbers stay whole, and 20.3 - 0.2 is 20.1. None beyond all finite numbers.
fn move_number(number: &Value, by: f64) -> Option<Value> {
    let whole = match number {
        Value::I64(n) => Some(i128::from(*n)),
        Value::U64(n) => Some(i128::from(*n)),
        Value::Bool(_) | Value::F64(_) | Value::Text(_) => None,
    };
    if let Some(whole) = whole
        && by.fract() == 0.0
        && by.abs() <= i64::MAX as f64
    {
        let moved = whole + by as i128;
        let small = i64::try_from(moved).map(Value::I64).ok();
        if let Some(value) = small.or_else(|| u64::try_from(moved).map(Value::U64).ok()) {
            return Some(value);
        }
    }
    let number = number.as_f64()?;
    let digits = fraction_digits(number).max(fraction_digits(by));
    let moved: f64 = format!("{:.digits$}", number + by).parse().ok()?;
    moved.is_finite().then_some(Value::F64(moved))
}

/// Digits behind the point in the shortest decimal form.
fn fraction_digits(number: f64) -> usize {
    number.to_string().split_once('.').map_or(0, |(_, fraction)| fraction.len())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::*;
    use crate::rules::fixtures::Twin;
    use crate::rules::parser::parse;
    use Truth::{False, True, Unknown};

    fn truth(text: &str, facts: &Twin) -> Truth {
        parse(text).expect(text).evaluate(facts).truth
    }

    fn twin() -> Twin {
        Twin::new()
            .with("t", Value::F64(80.5))
            .with("n", Value::I64(3))
            .with("on", Value::Bool(true))
            .with("off", Value::Bool(false))
            .with("mode", Value::Text("AUTO".into()))
            .with("am2301.temperature", Value::I64(22))
            .with("switch:0.apower", Value::F64(41.7))
            .told("bad", Value::F64(99.0), Quality::Bad)
            .told("replayed", Value::Bool(true), Quality::Uncertain)
    }

    #[test]
    fn operators_bind_as_in_cel() {
        let facts = twin();
        for (text, expected) in [
            ("t > 80", True),
            ("80 < t", True),
            ("t >= 80.5 && t <= 80.5 && n != 4 && n == 3.0", True),
            ("off && off || on", True),
            ("on || off && off", True),
            ("(on || off) && off", False),
            ("!off && on", True),
            ("!(off && on)", True),
            ("!off == on", True),
            ("!!on", True),
            ("off == off == on", True),
            ("on == (t > 80) && (t > 80) == (n < 4)", True),
            ("(n < 4) == on", True),
            ("on != (n < 4)", False),
            ("mode == \"AUTO\" || mode < 'A'", True),
            ("am2301.temperature > -5 && am2301.temperature > - - 5", True),
            ("metric[\"switch:0.apower\"] > 41 && metric [ 'n' ] == 3u", True),
            ("n > -9223372036854775808", True),
            ("((((n)))) == ((3))", True),
            ("on", True),
            ("(off)", False),
        ] {
            assert_eq!(truth(text, &facts), expected, "{text}");
        }
    }

    #[test]
    fn what_is_not_known_is_neither_true_nor_false() {
        let facts = twin();
        for (text, expected) in [
            ("missing > 1", Unknown),
            ("bad > 1", Unknown),
            ("replayed", Unknown),
            ("!replayed", Unknown),
            ("missing == missing", Unknown),
            ("missing != 1", Unknown),
            ("mode > 5", Unknown),
            ("mode != 5", Unknown),
            ("n", Unknown),
            ("n && on", Unknown),
            ("n && off", False),
            ("missing > 1 && off", False),
            ("off && missing > 1", False),
            ("missing > 1 && on", Unknown),
            ("on || bad > 1", True),
            ("bad > 1 || on", True),
            ("bad > 1 || off", Unknown),
            ("(missing > 1) == on", Unknown),
            ("t < on", Unknown),
        ] {
            assert_eq!(truth(text, &facts), expected, "{text}");
        }
    }

    #[test]
    fn a_lacking_metric_is_told_also_where_it_does_not_matter() {
        let facts = twin();
        let lacks = |text: &str| parse(text).unwrap().evaluate(&facts).lacks_metric;
        assert!(lacks("on || missing > 1"));
        assert!(lacks("missing > 1 && off"));
        assert!(!lacks("on || bad > 1"), "a metric that exists but is bad is there");
    }

    #[test]
    fn metrics_are_resolved_to_slots_once() {
        let program = parse("t > 1 && n > 1 || t < 5 && metric['n'] < 2").unwrap();
        assert_eq!(program.metrics, ["t".into(), Arc::<str>::from("n")]);
    }

    #[test]
    fn the_deciding_metric_is_the_only_one_or_the_left_of_one_comparison() {
        let decider = |text: &str| parse(text).unwrap().decider().map(ToString::to_string);
        assert_eq!(decider("80 < t").as_deref(), Some("t"));
        assert_eq!(decider("(t > 80)").as_deref(), Some("t"));
        assert_eq!(decider("t > 80 || t < 5").as_deref(), Some("t"));
        assert_eq!(decider("!on").as_deref(), Some("on"));
        assert_eq!(decider("t > n").as_deref(), Some("t"));
        assert_eq!(decider("t > 80 && on"), None);
    }

    #[test]
    fn numbers_move_as_on_paper() {
        for (number, by, moved) in [
            (Value::I64(80), -5.0, Some(Value::I64(75))),
            (Value::F64(80.0), -5.0, Some(Value::F64(75.0))),
            (Value::F64(20.3), -0.2, Some(Value::F64(20.1))),
            (Value::F64(0.3), -0.1, Some(Value::F64(0.2))),
            (Value::I64(3), 0.1, Some(Value::F64(3.1))),
            (Value::I64(i64::MAX), 1.0, Some(Value::U64(1 << 63))),
            (Value::I64(9_007_199_254_740_993), -1.0, Some(Value::I64(9_007_199_254_740_992))),
            (Value::F64(1e-300), 1e-300, Some(Value::F64(2e-300))),
            (Value::F64(-f64::MAX), -f64::MAX, None),
            (Value::Text("5".into()), 1.0, None),
        ] {
            assert_eq!(move_number(&number, by), moved, "{number:?} {by}");
        }
        assert!(move_number(&Value::U64(u64::MAX), 10.0).is_some(), "falls back to floats");
    }
}
