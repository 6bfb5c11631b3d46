#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]

//! The engine as its owner sees it.

use std::sync::Arc;
use std::time::Duration;

use super::fixtures::Twin;
use super::{FaultKind, PATTERN_BYTES_MAX, RULES_MAX, RuleEngine, RuleError, Transition};
use crate::config::{AlertRule, Span};
use crate::model::{AlertState, Millis, ObjectKey, Quality, Severity, Value};

use AlertState::{Firing, Resolved};

fn rule(alert: &str, expr: &str) -> AlertRule {
    AlertRule {
        alert: alert.into(),
        on: None,
        expr: expr.into(),
        for_: Span::default(),
        keep_firing_for: Span::default(),
        hysteresis: 0.0,
        severity: Severity::High,
        labels: [].into(),
        annotations: [].into(),
    }
}

fn on(pattern: &str, rule: AlertRule) -> AlertRule {
    AlertRule { on: Some(pattern.into()), ..rule }
}

fn delayed(on_ms: u64, off_ms: u64, rule: AlertRule) -> AlertRule {
    let span = |ms| Span(Duration::from_millis(ms));
    AlertRule { for_: span(on_ms), keep_firing_for: span(off_ms), ..rule }
}

fn key(device: &str) -> ObjectKey {
    ObjectKey::new("default", device)
}

/// What was told: rule, state, number, value.
type Told = (String, AlertState, u64, Option<Value>);

/// An engine with one device in front of it.
struct Bench {
    engine: RuleEngine,
    device: ObjectKey,
}

impl Bench {
    fn new(rules: &[AlertRule]) -> Self {
        let engine = RuleEngine::compile(rules).unwrap_or_else(|errors| panic!("{errors}"));
        Self { engine, device: key("press07") }
    }

    fn told(out: Vec<Transition>) -> Vec<Told> {
        out.into_iter().map(|told| (told.rule.alert.to_string(), told.state, told.number, told.value)).collect()
    }

    fn reading(&mut self, now: u64, changed: &[&str], facts: &Twin) -> Vec<Told> {
        let changed: Vec<Arc<str>> = changed.iter().map(|name| Arc::from(*name)).collect();
        let mut out = Vec::new();
        self.engine.on_reading(&self.device, &changed, facts, Millis(now), &mut out);
        Self::told(out)
    }

    /// Metric `t` alone, good.
    fn t(&mut self, now: u64, value: f64) -> Vec<Told> {
        self.reading(now, &["t"], &Twin::new().with("t", Value::F64(value)))
    }

    /// Metric `t` alone, not usable.
    fn bad(&mut self, now: u64) -> Vec<Told> {
        self.reading(now, &["t"], &Twin::new().told("t", Value::F64(99.0), Quality::Bad))
    }

    fn time(&mut self, now: u64) -> Vec<Told> {
        let mut out = Vec::new();
        self.engine.on_time(Millis(now), &mut out);
        Self::told(out)
    }

    fn deleted(&mut self) -> Vec<Told> {
        let mut out = Vec::new();
        self.engine.on_deleted(&self.device, &mut out);
        Self::told(out)
    }

    fn deadline(&self) -> Option<u64> {
        self.engine.next_deadline().map(|deadline| deadline.0)
    }
}

fn fired(number: u64, value: f64) -> Vec<Told> {
    vec![("Hot".into(), Firing, number, Some(Value::F64(value)))]
}

fn resolved(number: u64, value: f64) -> Vec<Told> {
    vec![("Hot".into(), Resolved, number, Some(Value::F64(value)))]
}

const NOTHING: Vec<Told> = Vec::new();

// --- firing, resolving, silence -----------------------------------------------------------------

#[test]
fn an_alert_fires_once_and_resolves_once_under_rising_numbers() {
    let mut bench = Bench::new(&[rule("Hot", "t > 80")]);
    assert_eq!(bench.t(0, 80.0), NOTHING);
    assert_eq!(bench.t(1, 80.5), fired(1, 80.5));
    assert_eq!(bench.t(2, 90.0), NOTHING);
    assert_eq!(bench.t(3, 80.0), resolved(2, 80.0));
    assert_eq!(bench.t(4, 79.0), NOTHING);
    assert_eq!(bench.t(5, 85.0), fired(3, 85.0));
}

#[test]
fn a_transition_carries_its_rule_and_device() {
    let mut engine = RuleEngine::compile(&[rule("Hot", "t > 80")]).unwrap();
    let mut out = Vec::new();
    engine.on_reading(&key("a"), &["t".into()], &Twin::new().with("t", Value::I64(81)), Millis(0), &mut out);
    assert_eq!((&*out[0].rule, &out[0].device), (&rule("Hot", "t > 80"), &key("a")));
}

#[test]
fn no_data_is_not_resolved() {
    let mut bench = Bench::new(&[rule("Hot", "t > 80")]);
    assert_eq!(bench.t(0, 90.0), fired(1, 90.0));
    assert_eq!(bench.bad(1000), NOTHING);
    assert_eq!(bench.reading(2000, &["t"], &Twin::new()), NOTHING, "the metric is gone altogether");
    assert_eq!(bench.time(300_000), NOTHING);
    assert_eq!(bench.t(300_001, 85.0), NOTHING, "no second raise");
    assert_eq!(bench.bad(300_002), NOTHING);
    assert_eq!(bench.t(600_000, 70.0), resolved(2, 70.0));
}

#[test]
fn a_retained_replay_fires_no_edge() {
    let mut bench = Bench::new(&[rule("Hot", "t > 80"), rule("Running", "on")]);
    let replayed =
        Twin::new().told("t", Value::F64(99.0), Quality::Uncertain).told("on", Value::Bool(true), Quality::Uncertain);
    assert_eq!(bench.reading(0, &["t", "on"], &replayed), NOTHING);
    assert_eq!(bench.t(1, 99.0), fired(1, 99.0));
    assert_eq!(bench.reading(2, &["t"], &Twin::new().told("t", Value::F64(1.0), Quality::Uncertain)), NOTHING);
    assert_eq!(bench.t(3, 1.0), resolved(2, 1.0));
}

#[test]
fn the_power_on_value_fires_without_a_delay_and_not_with_one() {
    let mut bench = Bench::new(&[rule("Hot", "t > 80")]);
    assert_eq!(bench.t(0, 21.5), NOTHING);
    assert_eq!(bench.t(10_000, 85.0), fired(1, 85.0));
    let mut bench = Bench::new(&[delayed(15_000, 0, rule("Hot", "t > 80"))]);
    for (now, value) in [(0, 21.5), (10_000, 85.0), (20_000, 21.6), (30_000, -127.0)] {
        assert_eq!((bench.time(now), bench.t(now, value)), (NOTHING, NOTHING));
    }
    assert_eq!(bench.deadline(), None);
}

// --- delays -------------------------------------------------------------------------------------

#[test]
fn the_on_delay_fires_at_its_deadline_with_the_last_value() {
    let mut bench = Bench::new(&[delayed(100, 0, rule("Hot", "t > 80"))]);
    assert_eq!(bench.t(1000, 81.0), NOTHING);
    assert_eq!(bench.deadline(), Some(1100));
    assert_eq!(bench.t(1050, 85.0), NOTHING);
    assert_eq!(bench.deadline(), Some(1100), "a true reading does not start the delay anew");
    assert_eq!(bench.time(1099), NOTHING);
    assert_eq!(bench.time(1100), fired(1, 85.0));
    assert_eq!((bench.deadline(), bench.time(9999)), (None, NOTHING));
}

#[test]
fn the_on_delay_starts_anew_after_a_false_reading() {
    let mut bench = Bench::new(&[delayed(100, 0, rule("Hot", "t > 80"))]);
    bench.t(1000, 81.0);
    assert_eq!(bench.t(1050, 80.0), NOTHING);
    assert_eq!((bench.deadline(), bench.engine.states()), (None, 0), "nothing is left of it");
    bench.t(1060, 81.0);
    assert_eq!(bench.time(1100), NOTHING);
    assert_eq!(bench.time(1160), fired(1, 81.0));
}

#[test]
fn the_off_delay_resolves_at_its_deadline_unless_the_condition_comes_back() {
    let mut bench = Bench::new(&[delayed(0, 100, rule("Hot", "t > 80"))]);
    assert_eq!(bench.t(1000, 81.0), fired(1, 81.0));
    assert_eq!(bench.t(1010, 79.0), NOTHING);
    assert_eq!(bench.deadline(), Some(1110));
    assert_eq!(bench.t(1050, 82.0), NOTHING, "back to firing, and nobody is told");
    assert_eq!(bench.deadline(), None);
    bench.t(1060, 79.0);
    bench.t(1070, 78.0);
    assert_eq!(bench.time(1159), NOTHING);
    assert_eq!(bench.time(1160), resolved(2, 78.0));
}

#[test]
fn at_an_equal_time_the_first_call_counts() {
    let rules = [delayed(100, 100, rule("Hot", "t > 80"))];
    let mut reading_first = Bench::new(&rules);
    reading_first.t(0, 81.0);
    assert_eq!(reading_first.t(100, 79.0), NOTHING);
    assert_eq!((reading_first.time(100), reading_first.deadline()), (NOTHING, None));

    let mut time_first = Bench::new(&rules);
    time_first.t(0, 81.0);
    assert_eq!(time_first.time(100), fired(1, 81.0));
    assert_eq!(time_first.t(100, 79.0), NOTHING);
    assert_eq!(time_first.t(200, 81.0), NOTHING, "true at the end of the off-delay");
    assert_eq!(time_first.time(200), NOTHING);

    let mut true_at_the_deadline = Bench::new(&rules);
    true_at_the_deadline.t(0, 81.0);
    assert_eq!(true_at_the_deadline.t(100, 82.0), fired(1, 82.0));
    assert_eq!(true_at_the_deadline.time(100), NOTHING);
    true_at_the_deadline.t(150, 79.0);
    assert_eq!(true_at_the_deadline.t(250, 78.0), resolved(2, 78.0));
    assert_eq!(true_at_the_deadline.time(250), NOTHING);
}

#[test]
fn a_late_call_does_not_swallow_an_alert() {
    let mut bench = Bench::new(&[delayed(100, 0, rule("Hot", "t > 80"))]);
    bench.t(0, 81.0);
    let told = bench.t(101, 79.0);
    assert_eq!(told, [fired(1, 81.0), resolved(2, 79.0)].concat());
    assert_eq!((bench.time(101), bench.deadline()), (NOTHING, None));
}

#[test]
fn an_unknown_reading_stops_a_delay_and_the_next_one_goes_on_with_it() {
    let mut bench = Bench::new(&[delayed(100, 100, rule("Hot", "t > 80"))]);
    bench.t(1000, 81.0);
    assert_eq!(bench.bad(1060), NOTHING);
    assert_eq!((bench.deadline(), bench.time(5000)), (None, NOTHING), "nothing fires on what is not known");
    assert_eq!(bench.t(5000, 82.0), NOTHING, "60 of 100 are spent");
    assert_eq!(bench.deadline(), Some(5040));
    assert_eq!(bench.time(5040), fired(1, 82.0));
    bench.t(6000, 70.0);
    bench.bad(6070);
    assert_eq!(bench.time(9000), NOTHING, "nothing resolves on what is not known");
    bench.t(9000, 71.0);
    assert_eq!(bench.time(9030), resolved(2, 71.0));
}

#[test]
fn a_sensor_that_flickers_still_fires() {
    let mut bench = Bench::new(&[delayed(100, 0, rule("Hot", "t > 80"))]);
    let mut told = Vec::new();
    for step in 0..10 {
        told.extend(bench.t(step * 40, 95.0));
        told.extend(bench.bad(step * 40 + 20));
    }
    assert_eq!(told, fired(1, 95.0));
}

#[test]
fn delays_of_many_devices_end_in_the_order_of_their_deadlines() {
    let mut engine = RuleEngine::compile(&[delayed(100, 0, rule("Hot", "t > 80"))]).unwrap();
    let hot = Twin::new().with("t", Value::I64(81));
    let mut out = Vec::new();
    for (device, now) in [("c", 5), ("a", 7), ("b", 6)] {
        engine.on_reading(&key(device), &["t".into()], &hot, Millis(now), &mut out);
    }
    engine.on_time(Millis(106), &mut out);
    assert_eq!(out.iter().map(|told| &**told.device.name()).collect::<Vec<_>>(), ["c", "b"]);
    assert_eq!(engine.next_deadline(), Some(Millis(107)));
}

// --- hysteresis ---------------------------------------------------------------------------------

#[test]
fn hysteresis_moves_the_limit_of_each_operator_and_order() {
    // Expression, then values with what they tell.
    let (none, fire, resolve) = (None, Some(Firing), Some(Resolved));
    let table = [
        ("t > 80", "80 < t", [(80.0, none), (80.1, fire), (75.1, none), (75.0, resolve), (80.0, none), (81.0, fire)]),
        ("t >= 80", "80 <= t", [(79.9, none), (80.0, fire), (75.0, none), (74.9, resolve), (79.9, none), (80.0, fire)]),
        ("t < 80", "80 > t", [(80.0, none), (79.9, fire), (84.9, none), (85.0, resolve), (80.0, none), (79.0, fire)]),
        ("t <= 80", "80 >= t", [(80.1, none), (80.0, fire), (85.0, none), (85.1, resolve), (80.1, none), (80.0, fire)]),
    ];
    for (straight, mirrored, values) in table {
        for expr in [straight, mirrored] {
            let mut bench = Bench::new(&[AlertRule { hysteresis: 5.0, ..rule("Hot", expr) }]);
            for (now, (value, expected)) in values.into_iter().enumerate() {
                let told = bench.t(now as u64, value).pop().map(|told| told.1);
                assert_eq!(told, expected, "{expr} at {value}");
            }
        }
    }
}

#[test]
fn without_hysteresis_an_alert_resolves_as_soon_as_its_condition_is_false() {
    for (expr, fires, resolves) in
        [("t > 80", 80.1, 80.0), ("t >= 80", 80.0, 79.9), ("t < 80", 79.9, 80.0), ("t <= 80", 80.0, 80.1)]
    {
        let mut bench = Bench::new(&[rule("Hot", expr)]);
        assert_eq!((bench.t(0, fires), bench.t(1, resolves)), (fired(1, fires), resolved(2, resolves)), "{expr}");
    }
}

#[test]
fn during_the_delays_the_written_limit_counts() {
    let mut bench = Bench::new(&[AlertRule { hysteresis: 5.0, ..delayed(100, 100, rule("Hot", "t > 80")) }]);
    bench.t(0, 81.0);
    bench.t(50, 78.0);
    assert_eq!(bench.deadline(), None, "78 does not hold the on-delay");
    bench.t(60, 81.0);
    assert_eq!(bench.time(160), fired(1, 81.0));
    bench.t(200, 78.0);
    assert_eq!(bench.deadline(), None, "78 is not clear");
    bench.t(210, 75.0);
    bench.t(220, 78.0);
    assert_eq!(bench.time(310), resolved(2, 78.0), "78 does not raise it again");
}

#[test]
fn whole_numbers_beyond_2_to_53_keep_their_hysteresis_exact() {
    let mut bench = Bench::new(&[AlertRule { hysteresis: 1.0, ..rule("Hot", "t > 9007199254740994") }]);
    let mut t = |now, n| bench.reading(now, &["t"], &Twin::new().with("t", Value::I64(n))).pop().map(|told| told.1);
    assert_eq!(t(0, 9_007_199_254_740_994), None);
    assert_eq!(t(1, 9_007_199_254_740_995), Some(Firing));
    assert_eq!(t(2, 9_007_199_254_740_994), None);
    assert_eq!(t(3, 9_007_199_254_740_993), Some(Resolved));
}

#[test]
fn hysteresis_needs_one_comparison_of_a_metric_with_a_number() {
    for expr in ["t > 80 && on", "t == 80", "t != 80", "t > u", "t > 'A'", "!(t > 80)", "on", "t > 80 || t < 5"] {
        let errors = RuleEngine::compile(&[AlertRule { hysteresis: 1.0, ..rule("Hot", expr) }]).unwrap_err();
        assert!(matches!(errors.errors(), [RuleError::Hysteresis { .. }]), "{expr}: {errors}");
        assert!(errors.to_string().ends_with("write it so, or remove the line"), "{errors}");
    }
    for hysteresis in [-1.0, f64::NAN, f64::INFINITY] {
        let errors = RuleEngine::compile(&[AlertRule { hysteresis, ..rule("Hot", "t > 80") }]).unwrap_err();
        assert!(matches!(errors.errors(), [RuleError::Hysteresis { .. }]), "{errors}");
    }
    let far = AlertRule { hysteresis: f64::MAX, ..rule("Hot", "t > -1.7e308") };
    assert!(RuleEngine::compile(&[far]).is_err(), "the limit would lie beyond all numbers");
    assert!(RuleEngine::compile(&[AlertRule { hysteresis: 1.0, ..rule("Hot", "(80 < t)") }]).is_ok());
    assert!(RuleEngine::compile(&[AlertRule { hysteresis: -0.0, ..rule("Hot", "on") }]).is_ok());
}

// --- selection ----------------------------------------------------------------------------------

#[test]
fn without_a_pattern_a_device_needs_all_metrics_of_the_rule() {
    let mut bench = Bench::new(&[rule("Hot", "t > 80 || v > 4")]);
    assert_eq!(bench.t(0, 90.0), NOTHING, "v is not there");
    let bad = Twin::new().with("t", Value::F64(90.0)).told("v", Value::I64(0), Quality::Bad);
    assert_eq!(bench.reading(1, &["t"], &bad).len(), 1, "v is there, if bad");
}

#[test]
fn with_a_pattern_a_device_needs_to_match_it_only() {
    let mut bench = Bench::new(&[on("press*", rule("Hot", "t > 80 || v > 4")), on("pump*", rule("Pump", "t > 80"))]);
    assert_eq!(bench.t(0, 90.0), [("Hot".to_owned(), Firing, 1, None)]);
    bench.device = key("pump3");
    assert_eq!(bench.t(0, 90.0), [("Pump".to_owned(), Firing, 1, Some(Value::F64(90.0)))]);
    bench.device = key("fan");
    assert_eq!(bench.t(0, 90.0), NOTHING);
}

#[test]
fn a_reading_touches_only_rules_that_name_its_metrics_and_match_its_device() {
    let mut rules: Vec<AlertRule> = (0..5000).map(|n| rule(&format!("m{n}"), &format!("m{n} > 1"))).collect();
    rules.extend((5000..9990).map(|n| on(&format!("device{n}"), rule(&format!("m{n}"), "t > 1"))));
    rules.push(rule("Both", "t > 80 && v > 4"));
    rules.push(on("press*", rule("Press", "t < 5")));
    let mut bench = Bench::new(&rules);
    let twin = Twin::new().with("t", Value::F64(20.0)).with("v", Value::F64(1.0)).with("m7", Value::I64(0));
    for _ in 0..2 {
        bench.reading(0, &["t"], &twin);
        assert_eq!(twin.take_asked(), ["t", "v", "t"], "Both and Press");
        bench.reading(0, &["v"], &twin);
        assert_eq!(twin.take_asked(), ["t", "v"], "Both");
        bench.reading(0, &["t", "v"], &twin);
        assert_eq!(twin.take_asked().len(), 3, "a rule that names both is evaluated once");
        bench.reading(0, &["m7"], &twin);
        assert_eq!(twin.take_asked(), ["m7"]);
        bench.reading(0, &["unheard of"], &twin);
        assert!(twin.take_asked().is_empty());
    }
}

// --- restarts, deletions, bounds ----------------------------------------------------------------

#[test]
fn a_restored_alert_is_not_told_again_and_numbers_on() {
    let mut bench = Bench::new(&[rule("Hot", "t > 80")]);
    assert!(bench.engine.restore("Hot", &key("press07"), Firing, 3));
    assert_eq!(bench.t(0, 90.0), NOTHING);
    assert_eq!(bench.t(1, 70.0), resolved(4, 70.0));
    assert_eq!(bench.t(2, 90.0), fired(5, 90.0));

    let mut bench = Bench::new(&[rule("Hot", "t > 80")]);
    assert!(bench.engine.restore("Hot", &key("press07"), Resolved, 4));
    assert_eq!(bench.t(0, 70.0), NOTHING);
    assert_eq!(bench.t(1, 90.0), fired(5, 90.0));
}

#[test]
fn a_restored_alert_resolves_on_the_first_false_reading_after_its_off_delay() {
    let mut bench = Bench::new(&[delayed(100, 100, rule("Hot", "t > 80"))]);
    assert!(bench.engine.restore("Hot", &key("press07"), Firing, 1));
    assert_eq!(bench.bad(0), NOTHING);
    assert_eq!(bench.t(10, 70.0), NOTHING);
    assert_eq!(bench.time(110), resolved(2, 70.0));
}

#[test]
fn what_nobody_would_move_on_is_not_restored() {
    let mut bench = Bench::new(&[on("press*", rule("Hot", "t > 80"))]);
    assert!(!bench.engine.restore("Gone", &key("press07"), Firing, 3));
    assert!(!bench.engine.restore("Hot", &key("pump"), Firing, 3));
    assert_eq!(bench.engine.states(), 0);
}

#[test]
fn a_restored_number_of_the_wrong_half_goes_up() {
    let mut bench = Bench::new(&[rule("Hot", "t > 80")]);
    assert!(bench.engine.restore("Hot", &key("press07"), Firing, 4));
    assert_eq!(bench.t(0, 70.0), resolved(6, 70.0));
    assert!(bench.engine.restore("Hot", &key("press07"), Resolved, 7));
    assert_eq!(bench.t(1, 90.0), fired(9, 90.0));
    assert!(bench.engine.restore("Hot", &key("pump"), Resolved, 0));
    assert_eq!(bench.engine.states(), 1, "a number of 0 is nothing to hold");
}

#[test]
fn a_deleted_device_resolves_its_alerts_and_numbers_on_when_it_comes_back() {
    let mut bench = Bench::new(&[
        delayed(0, 100, rule("Hot", "t > 80")),
        delayed(50, 0, rule("Warm", "t > 60")),
        rule("Cold", "t < 5"),
    ]);
    bench.t(0, 90.0);
    bench.time(50);
    bench.t(60, 62.0);
    assert_eq!(bench.deadline(), Some(160), "Hot is clearing, Warm fires");
    let gone = bench.deleted();
    assert_eq!(gone, [("Hot".to_owned(), Resolved, 2, None), ("Warm".to_owned(), Resolved, 2, None)]);
    assert_eq!((bench.deadline(), bench.time(9999), bench.deleted()), (None, NOTHING, NOTHING));
    assert_eq!(bench.t(10_000, 90.0), fired(3, 90.0));
}

#[test]
fn a_deleted_device_stops_its_delays() {
    let mut bench = Bench::new(&[delayed(100, 0, rule("Hot", "t > 80"))]);
    bench.t(0, 90.0);
    assert_eq!((bench.deleted(), bench.deadline(), bench.time(9999)), (NOTHING, None, NOTHING));
    assert_eq!(bench.engine.states(), 0);
}

#[test]
fn beyond_the_bound_a_new_alert_is_refused_and_counted_and_known_ones_go_on() {
    let mut bench = Bench::new(&[rule("Hot", "t > 80")]);
    bench.engine.hold_at_most(2);
    for (device, told) in [("a", 1), ("b", 1), ("c", 0)] {
        bench.device = key(device);
        assert_eq!(bench.t(0, 90.0).len(), told, "{device}");
    }
    assert_eq!((bench.engine.states(), bench.engine.refused()), (2, 1));
    assert!(!bench.engine.restore("Hot", &key("d"), Firing, 1));
    bench.device = key("a");
    assert_eq!(bench.t(1, 70.0), resolved(2, 70.0));
    assert_eq!(bench.deleted(), NOTHING);
    bench.device = key("c");
    assert_eq!(bench.t(2, 90.0).len(), 1, "the deleted device made room");
}

#[test]
fn an_alert_whose_number_was_forgotten_numbers_on_above_it() {
    let mut bench = Bench::new(&[rule("Hot", "t > 80")]);
    bench.engine.hold_at_most(1);
    for number in [1, 3, 5] {
        assert_eq!(bench.t(0, 90.0), fired(number, 90.0));
        assert_eq!(bench.deleted(), [("Hot".to_owned(), Resolved, number + 1, None)]);
        assert_eq!(bench.engine.states(), 0);
    }
}

// --- what is refused ----------------------------------------------------------------------------

#[test]
fn the_faults_of_all_rules_are_told_together_in_their_order() {
    let rules = [
        rule("Good", "t > 80"),
        rule("Bad", "t + 1 > 80"),
        rule("Good", "t > 81"),
        rule(" ", "t > 80"),
        rule("Always", "true || 1 < 2"),
        on("", rule("Nowhere", "t > 80")),
        on(&"*".repeat(PATTERN_BYTES_MAX + 1), rule("Long", "t > 80")),
    ];
    let errors = RuleEngine::compile(&rules).unwrap_err();
    let [expression, twice, missing, no_metric, empty, long] = errors.errors() else { panic!("{errors}") };
    assert!(matches!(expression, RuleError::Expression { fault, .. } if fault.kind == FaultKind::Unsupported));
    assert_eq!(twice, &RuleError::NameTwice { rule: "Good".into() });
    assert_eq!(missing, &RuleError::NameMissing { position: 4 });
    assert_eq!(no_metric, &RuleError::NoMetric { rule: "Always".into() });
    assert!(matches!((empty, long), (RuleError::Pattern { .. }, RuleError::Pattern { .. })), "{errors}");
    let shown = errors.to_string();
    assert!(shown.starts_with("alert \"Bad\": `+` (arithmetic) is not supported (line 1, column 3); "), "{shown}");
    assert!(shown.contains("\n  t + 1 > 80\n    ^\n"), "{shown}");
}

#[test]
fn ten_thousand_rules_are_taken_and_one_more_is_not() {
    let mut rules: Vec<AlertRule> = (0..RULES_MAX).map(|n| rule(&format!("r{n}"), "t > 80")).collect();
    assert!(RuleEngine::compile(&rules).is_ok());
    rules.push(rule("more", "t > 80"));
    let errors = RuleEngine::compile(&rules).unwrap_err();
    assert!(errors.to_string().starts_with("10001 alert rules are more than 10000; remove some"), "{errors}");
}

#[test]
fn no_rules_are_no_fault() {
    let mut bench = Bench::new(&[]);
    assert_eq!((bench.t(0, 90.0), bench.time(0), bench.deadline()), (NOTHING, NOTHING, None));
}
