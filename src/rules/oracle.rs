#![allow(clippy::expect_used, reason = "tests may panic")]

//! The `cel` crate as an oracle: on what both languages share, both say the same.

use cel::{Context, Program as CelProgram, Value as CelValue};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::fixtures::Twin;
use super::parser::parse;
use super::truth::Truth;
use crate::model::Value;

/// Random expressions; the seed is fixed.
const CASES: u32 = 300;

/// Few values, so that equality happens.
fn number() -> impl Strategy<Value = f64> {
    prop_oneof![Just(0.0), Just(1.5), Just(-1.5), Just(80.0), Just(1e6), -2.0..2.0]
}

fn text() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just(""), Just("A"), Just("AUTO"), Just("é"), Just("a'b"), Just("tab\there")]
}

fn comparison() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("<"), Just("<="), Just(">"), Just(">="), Just("=="), Just("!=")]
}

fn number_term() -> impl Strategy<Value = String> {
    let literal = number().prop_map(|n| format!("{n:?}"));
    prop_oneof![literal, Just("x".to_owned()), Just("y".to_owned()), Just("(x)".to_owned())]
}

fn text_term() -> impl Strategy<Value = String> {
    let single = |text: &str| format!("'{}'", text.replace('\'', "\\'").replace('\t', "\\t"));
    prop_oneof![text().prop_map(|text| format!("{text:?}")), text().prop_map(single), Just("s".to_owned())]
}

/// A condition of matching types.
fn condition() -> impl Strategy<Value = String> {
    let compared = |(left, op, right): (String, &str, String)| format!("{left} {op} {right}");
    let leaf = prop_oneof![
        4 => (number_term(), comparison(), number_term()).prop_map(compared),
        2 => (text_term(), comparison(), text_term()).prop_map(compared),
        2 => prop_oneof![Just("p"), Just("q"), Just("true"), Just("false")].prop_map(str::to_owned),
        1 => (comparison()).prop_map(|op| format!("p {op} q")),
    ];
    leaf.prop_recursive(4, 24, 2, |inner| {
        let equality = prop_oneof![Just("=="), Just("!=")];
        prop_oneof![
            3 => (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{a} && {b}")),
            3 => (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{a}||{b}")),
            2 => inner.clone().prop_map(|a| format!("({a})")),
            2 => inner.clone().prop_map(|a| format!("!({a})")),
            1 => Just("!p".to_owned()),
            1 => (inner.clone(), equality, inner).prop_map(|(a, op, b)| format!("({a}) {op} ({b})")),
        ]
    })
}

#[test]
fn the_shared_subset_means_what_cel_says() {
    let mut runner = TestRunner::new_with_rng(Config::default(), TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let cases = (condition(), (number(), number()), text(), any::<(bool, bool)>());
    let (mut yes, mut no) = (0, 0);
    for _ in 0..CASES {
        let (expr, numbers, text, flags) = cases.new_tree(&mut runner).expect("nothing is filtered").current();
        let mut context = Context::default();
        context.add_variable_from_value("x", numbers.0);
        context.add_variable_from_value("y", numbers.1);
        context.add_variable_from_value("s", text);
        context.add_variable_from_value("p", flags.0);
        context.add_variable_from_value("q", flags.1);
        let program = CelProgram::compile(&expr).unwrap_or_else(|error| panic!("{expr}: {error}"));
        let theirs = program.execute(&context).unwrap_or_else(|error| panic!("{expr}: {error}"));

        let twin = Twin::new().with("x", Value::F64(numbers.0)).with("y", Value::F64(numbers.1));
        let twin = twin.with("p", Value::Bool(flags.0)).with("q", Value::Bool(flags.1));
        let twin = twin.with("s", Value::Text(text.into()));
        let ours = parse(&expr).unwrap_or_else(|fault| panic!("{fault}")).evaluate(&twin).truth;
        let expected = match theirs {
            CelValue::Bool(true) => Truth::True,
            CelValue::Bool(false) => Truth::False,
            other => panic!("{expr}: {other:?}"),
        };
        assert_eq!(ours, expected, "{expr} with {numbers:?} {text:?} {flags:?}");
        *if ours == Truth::True { &mut yes } else { &mut no } += 1;
    }
    assert!(yes > CASES / 4 && no > CASES / 4, "the cases decide nothing: {yes} true, {no} false");
}
