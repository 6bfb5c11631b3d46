//! Three-valued logic, and comparisons that are exact across number types.

use std::cmp::Ordering;

use crate::model::Value;

/// Outcome of a condition. `Unknown` is what a missing or unusable value makes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Truth {
    False,
    True,
    Unknown,
}

impl Truth {
    /// SQL's AND: false wins, then unknown.
    pub(super) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::False, _) | (_, Self::False) => Self::False,
            (Self::True, Self::True) => Self::True,
            _ => Self::Unknown,
        }
    }

    /// SQL's OR: true wins, then unknown.
    pub(super) fn or(self, other: Self) -> Self {
        !(!self).and(!other)
    }
}

impl std::ops::Not for Truth {
    type Output = Self;

    fn not(self) -> Self {
        match self {
            Self::False => Self::True,
            Self::True => Self::False,
            Self::Unknown => Self::Unknown,
        }
    }
}

impl From<bool> for Truth {
    fn from(value: bool) -> Self {
        if value { Self::True } else { Self::False }
    }
}

/// A relational operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Equal,
    NotEqual,
}

impl Comparison {
    /// Compares two operands; unknown where they are of different types.
    pub(super) fn apply(self, left: Operand<'_>, right: Operand<'_>) -> Truth {
        left.order(right).map_or(Truth::Unknown, |order| self.holds(order).into())
    }

    /// The operator with its sides exchanged: `80 < t` is `t > 80`.
    pub(super) fn mirrored(self) -> Self {
        match self {
            Self::Less => Self::Greater,
            Self::LessOrEqual => Self::GreaterOrEqual,
            Self::Greater => Self::Less,
            Self::GreaterOrEqual => Self::LessOrEqual,
            Self::Equal | Self::NotEqual => self,
        }
    }

    /// True for the four that need an order.
    pub(super) fn is_ordering(self) -> bool {
        !matches!(self, Self::Equal | Self::NotEqual)
    }

    fn holds(self, order: Ordering) -> bool {
        match self {
            Self::Less => order.is_lt(),
            Self::LessOrEqual => order.is_le(),
            Self::Greater => order.is_gt(),
            Self::GreaterOrEqual => order.is_ge(),
            Self::Equal => order.is_eq(),
            Self::NotEqual => order.is_ne(),
        }
    }
}

/// A value on one side of an operator.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Operand<'v> {
    Unknown,
    Bool(bool),
    /// Any whole number of 64 bits, with or without a sign.
    Int(i128),
    Float(f64),
    Text(&'v str),
}

impl<'v> Operand<'v> {
    /// As a condition: only a boolean decides.
    pub(super) fn truth(self) -> Truth {
        match self {
            Self::Bool(value) => value.into(),
            _ => Truth::Unknown,
        }
    }

    /// As CEL orders: false before true, numbers by size, text by code point. None across types, and with NaN.
    fn order(self, other: Operand<'v>) -> Option<Ordering> {
        match (self, other) {
            (Self::Bool(a), Self::Bool(b)) => Some(a.cmp(&b)),
            (Self::Int(a), Self::Int(b)) => Some(a.cmp(&b)),
            (Self::Float(a), Self::Float(b)) => a.partial_cmp(&b),
            (Self::Int(a), Self::Float(b)) => order_mixed(a, b),
            (Self::Float(a), Self::Int(b)) => order_mixed(b, a).map(Ordering::reverse),
            (Self::Text(a), Self::Text(b)) => Some(a.cmp(b)),
            _ => None,
        }
    }
}

impl<'v> From<&'v Value> for Operand<'v> {
    fn from(value: &'v Value) -> Self {
        match value {
            Value::Bool(b) => Self::Bool(*b),
            Value::I64(n) => Self::Int((*n).into()),
            Value::U64(n) => Self::Int((*n).into()),
            Value::F64(n) => Self::Float(*n),
            Value::Text(text) => Self::Text(text),
        }
    }
}

impl From<Truth> for Operand<'_> {
    fn from(truth: Truth) -> Self {
        match truth {
            Truth::False => Self::Bool(false),
            Truth::True => Self::Bool(true),
            Truth::Unknown => Self::Unknown,
        }
    }
}

/// Orders a whole number of 64 bits and a float without rounding either.
fn order_mixed(whole: i128, float: f64) -> Option<Ordering> {
    /// Beyond every 64-bit number, and far inside `i128`.
    const BEYOND: f64 = 36_893_488_147_419_103_232.0; // 2^65
    if float.is_nan() {
        return None;
    }
    if float.abs() >= BEYOND {
        return Some(if float > 0.0 { Ordering::Less } else { Ordering::Greater });
    }
    let part = 0.0_f64.partial_cmp(&float.fract())?;
    Some(whole.cmp(&(float.trunc() as i128)).then(part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Truth::{False, True, Unknown};

    #[test]
    fn and_or_not_follow_the_tables_of_sql() {
        let all = [False, True, Unknown];
        let and = [[False, False, False], [False, True, Unknown], [False, Unknown, Unknown]];
        let or = [[False, True, Unknown], [True, True, True], [Unknown, True, Unknown]];
        for (a, (and, or)) in all.iter().zip(and.iter().zip(&or)) {
            for (b, (and, or)) in all.iter().zip(and.iter().zip(or)) {
                assert_eq!((a.and(*b), a.or(*b)), (*and, *or), "{a:?} {b:?}");
            }
        }
        assert_eq!(all.map(|a| !a), [True, False, Unknown]);
    }

    #[test]
    fn whole_numbers_and_floats_compare_without_rounding() {
        let equal = |a: Value, b: Value| Comparison::Equal.apply((&a).into(), (&b).into());
        let less = |a: Value, b: Value| Comparison::Less.apply((&a).into(), (&b).into());
        let (two53, two53_and_1) = (9_007_199_254_740_992_i64, 9_007_199_254_740_993_i64);
        assert_eq!(equal(Value::I64(21), Value::F64(21.0)), True);
        assert_eq!(equal(Value::I64(7), Value::U64(7)), True);
        assert_eq!(equal(Value::I64(two53_and_1), Value::I64(two53)), False);
        assert_eq!(equal(Value::I64(two53), Value::F64(two53 as f64)), True);
        assert_eq!(equal(Value::I64(two53_and_1), Value::F64(two53 as f64)), False);
        assert_eq!(less(Value::F64(two53 as f64), Value::I64(two53_and_1)), True);
        assert_eq!(less(Value::I64(-1), Value::U64(u64::MAX)), True);
        assert_eq!(less(Value::U64(u64::MAX), Value::F64(18_446_744_073_709_551_616.0)), True);
        assert_eq!(less(Value::I64(-1), Value::F64(-1.5)), False);
        assert_eq!(less(Value::I64(-2), Value::F64(-1.5)), True);
        assert_eq!(less(Value::I64(1), Value::F64(1.5)), True);
        assert_eq!(less(Value::I64(i64::MAX), Value::F64(f64::INFINITY)), True);
        assert_eq!(less(Value::F64(-1e300), Value::I64(i64::MIN)), True);
        assert_eq!(equal(Value::I64(0), Value::F64(-0.0)), True);
    }

    #[test]
    fn different_types_and_nan_are_unknown_also_for_equality() {
        let values = [Operand::Unknown, Operand::Bool(true), Operand::Int(1), Operand::Text("1")];
        for op in [Comparison::Less, Comparison::GreaterOrEqual, Comparison::Equal, Comparison::NotEqual] {
            for (nth, a) in values.iter().enumerate() {
                for b in values.iter().skip(nth + 1) {
                    assert_eq!((op.apply(*a, *b), op.apply(*b, *a)), (Unknown, Unknown), "{op:?} {a:?} {b:?}");
                }
            }
            assert_eq!(op.apply(Operand::Unknown, Operand::Unknown), Unknown);
            assert_eq!(op.apply(Operand::Int(1), Operand::Float(f64::NAN)), Unknown);
            assert_eq!(op.apply(Operand::Float(f64::NAN), Operand::Float(f64::NAN)), Unknown);
        }
    }

    #[test]
    fn text_and_booleans_have_the_order_of_cel() {
        let text = |op: Comparison, a, b| op.apply(Operand::Text(a), Operand::Text(b));
        assert_eq!(text(Comparison::Less, "E10", "E9"), True);
        assert_eq!(text(Comparison::Less, "z", "é"), True);
        assert_eq!(Comparison::Less.apply(Operand::Bool(false), Operand::Bool(true)), True);
    }

    #[test]
    fn only_a_boolean_is_a_condition() {
        assert_eq!(Operand::Bool(true).truth(), True);
        for other in [Operand::Int(1), Operand::Float(1.0), Operand::Text("true"), Operand::Unknown] {
            assert_eq!(other.truth(), Unknown);
        }
    }
}
