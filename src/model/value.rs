//! Values of metrics and how far they can be trusted.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};

/// A decoded sensor value. Integers stay integers: 2^53+1 is exact.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// `true`, `false`, and the words ON/OFF where a source maps them.
    Bool(bool),
    /// A whole number that fits into 64 bits with a sign.
    I64(i64),
    /// A whole number above `i64::MAX`.
    U64(u64),
    /// Any other number; never NaN, never infinite.
    F64(f64),
    /// Text, also numbers that fit into none of the above.
    Text(Arc<str>),
}

impl Value {
    /// The number behind the value; none for text and booleans.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Self::I64(n) => Some(*n as f64),
            Self::U64(n) => Some(*n as f64),
            Self::F64(n) => Some(*n),
            Self::Bool(_) | Self::Text(_) => None,
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Bool(b) => serializer.serialize_bool(*b),
            Self::I64(n) => serializer.serialize_i64(*n),
            Self::U64(n) => serializer.serialize_u64(*n),
            Self::F64(n) => serializer.serialize_f64(*n),
            Self::Text(text) => serializer.serialize_str(text),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(b) => b.fmt(f),
            Self::I64(n) => n.fmt(f),
            Self::U64(n) => n.fmt(f),
            Self::F64(n) => n.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

/// OPC UA status of a value, reduced to its severity.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Quality {
    /// Usable.
    #[default]
    Good,
    /// Usable with care: a retained replay, a stale value.
    Uncertain,
    /// Not usable: null, NaN, refused by the decoder.
    Bad,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_survives_json_with_its_type() {
        for (value, json) in [
            (Value::Bool(true), "true"),
            (Value::I64(9_007_199_254_740_993), "9007199254740993"),
            (Value::U64(u64::MAX), "18446744073709551615"),
            (Value::F64(21.5), "21.5"),
            (Value::Text("23,9".into()), "\"23,9\""),
        ] {
            assert_eq!(serde_json::to_string(&value).expect("plain"), json);
            assert_eq!(serde_json::from_str::<Value>(json).expect("plain"), value);
        }
    }
}
