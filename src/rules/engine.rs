//! The engine: compiles rules, and joins selection, evaluation and alert states.

use std::collections::HashMap;
use std::sync::Arc;

use super::alerts::{Alerts, Event, RuleRef};
use super::error::{RuleError, RuleErrors};
use super::glob::Glob;
use super::parser::parse;
use super::program::Program;
use super::selection::Selection;
use super::state::{Delays, Input};
use super::truth::Truth;
use super::{Facts, PATTERN_BYTES_MAX, RULES_MAX, Transition};
use crate::config::AlertRule;
use crate::model::{AlertState, Millis, ObjectKey};

/// Compiled rules and the state of every alert.
///
/// Time comes in as an argument and must not go back. [`Self::on_time`] wants to be called at
/// [`Self::next_deadline`]; a call that is late changes what is told by its lateness only, never by its order: a delay
/// that was over before a reading is settled before that reading. At an equal time the call that comes first counts.
#[derive(Debug)]
pub struct RuleEngine {
    rules: Vec<Rule>,
    names: HashMap<Arc<str>, u32>,
    selection: Selection,
    alerts: Alerts,
    /// The rules of the reading under way; kept for its memory.
    touched: Vec<u32>,
}

impl RuleEngine {
    /// Compiles rules. The errors of all rules are told together, in their order.
    pub fn compile(rules: &[AlertRule]) -> Result<Self, RuleErrors> {
        if rules.len() > RULES_MAX {
            let error = RuleError::TooMany { count: rules.len(), max: RULES_MAX };
            return Err(RuleErrors::new(error));
        }
        let mut faults = Vec::new();
        let mut engine = Self {
            rules: Vec::with_capacity(rules.len()),
            names: HashMap::with_capacity(rules.len()),
            selection: Selection::new(),
            alerts: Alerts::new(),
            touched: Vec::new(),
        };
        for (index, spec) in rules.iter().enumerate() {
            let is_new = engine.names.insert(spec.alert.clone(), index as u32).is_none();
            if spec.alert.trim().is_empty() {
                faults.push(RuleError::NameMissing { position: index + 1 });
            } else if !is_new {
                faults.push(RuleError::NameTwice { rule: spec.alert.clone() });
            }
            match Rule::compile(spec) {
                Ok(rule) => engine.add(rule),
                Err(fault) => faults.push(fault),
            }
        }
        RuleErrors::check(faults).map(|()| engine)
    }

    /// Takes over an alert that was told before a restart: it is not told again, its next transition has the next
    /// number.
    ///
    /// False if nobody will ever move it on: no rule has its name, its rule does not match the device any more, or
    /// there is no room. The caller then has to resolve it.
    pub fn restore(&mut self, alert: &str, device: &ObjectKey, state: AlertState, number: u64) -> bool {
        let Some(index) = self.names.get(alert).copied() else { return false };
        let Some(rule) = self.rules.get(index as usize) else { return false };
        rule.may_apply_to(device) && self.alerts.restore(rule.as_ref(index), device, state, number)
    }

    /// A device's metrics have changed or been told again: evaluates the rules that name one of `changed`, pushes
    /// transitions in the order of the rules.
    pub fn on_reading(
        &mut self,
        device: &ObjectKey,
        changed: &[Arc<str>],
        facts: &dyn Facts,
        now: Millis,
        out: &mut Vec<Transition>,
    ) {
        self.selection.touched(device, changed, &mut self.touched);
        for index in &self.touched {
            let Some(rule) = self.rules.get(*index as usize) else { continue };
            rule.on_reading(*index, &mut self.alerts, device, facts, now, out);
        }
    }

    /// The device is gone: its firing alerts resolve, its delays stop. Should it come back, its alerts number on.
    pub fn on_deleted(&mut self, device: &ObjectKey, out: &mut Vec<Transition>) {
        let rules = &self.rules;
        let rule = |index: u32| rules.get(index as usize).map(|rule| rule.as_ref(index));
        self.alerts.remove_device(device, rule, out);
        self.selection.forget(device);
    }

    /// When `on_time` wants to be called.
    pub fn next_deadline(&self) -> Option<Millis> {
        self.alerts.next_deadline()
    }

    /// Settles the delays that are over, those that end at `now` among them, in the order of their ends.
    pub fn on_time(&mut self, now: Millis, out: &mut Vec<Transition>) {
        while let Some((index, device)) = self.alerts.pop_due(now) {
            if let Some(rule) = self.rules.get(index as usize) {
                let event = Event { input: Input::Time, value: None, now };
                self.alerts.step(rule.as_ref(index), &device, event, out);
            }
        }
    }

    /// Alert states that are held: of alerts that are not normal, or once fired.
    pub fn states(&self) -> usize {
        self.alerts.len()
    }

    /// How often an alert could not be followed because [`super::STATES_MAX`] states are held.
    pub fn refused(&self) -> u64 {
        self.alerts.refused()
    }

    #[cfg(test)]
    pub(super) fn hold_at_most(&mut self, states: usize) {
        self.alerts.count_max = states;
    }

    fn add(&mut self, rule: Rule) {
        let index = self.rules.len() as u32;
        self.selection.add(index, &rule.trips.metrics, rule.pattern.as_ref());
        self.rules.push(rule);
    }
}

/// A compiled rule.
#[derive(Debug)]
struct Rule {
    spec: Arc<AlertRule>,
    /// The condition as it is written.
    trips: Program,
    /// The condition while the alert fires, where hysteresis makes it another.
    holds: Option<Program>,
    pattern: Option<Glob>,
    delays: Delays,
}

impl Rule {
    fn compile(spec: &AlertRule) -> Result<Self, RuleError> {
        let rule = || spec.alert.clone();
        let trips = parse(&spec.expr).map_err(|fault| RuleError::Expression { rule: rule(), fault })?;
        if trips.metrics.is_empty() {
            return Err(RuleError::NoMetric { rule: rule() });
        }
        Ok(Self {
            holds: hysteresis(spec, &trips).map_err(|what| RuleError::Hysteresis { rule: rule(), what })?,
            pattern: pattern(spec).map_err(|what| RuleError::Pattern { rule: rule(), what })?,
            delays: Delays { on: spec.for_.0, off: spec.keep_firing_for.0 },
            spec: Arc::new(spec.clone()),
            trips,
        })
    }

    fn as_ref(&self, index: u32) -> RuleRef<'_> {
        RuleRef { index, spec: &self.spec, delays: self.delays }
    }

    fn may_apply_to(&self, device: &ObjectKey) -> bool {
        self.pattern.as_ref().is_none_or(|pattern| pattern.matches(device.name()))
    }

    fn on_reading(
        &self,
        index: u32,
        alerts: &mut Alerts,
        device: &ObjectKey,
        facts: &dyn Facts,
        now: Millis,
        out: &mut Vec<Transition>,
    ) {
        let mut state = alerts.state(index, device);
        if state.deadline(self.delays).is_some_and(|deadline| deadline < now) {
            let event = Event { input: Input::Time, value: None, now };
            alerts.step(self.as_ref(index), device, event, out);
            state = alerts.state(index, device);
        }
        let program = self.holds.as_ref().filter(|_| state.is_firing()).unwrap_or(&self.trips);
        let outcome = program.evaluate(facts);
        if outcome.lacks_metric && self.pattern.is_none() {
            return;
        }
        let input = match outcome.truth {
            Truth::True => Input::True,
            Truth::False => Input::False,
            Truth::Unknown => Input::Unknown,
        };
        if state.step(input, now, self.delays) == (state, None) && !state.is_delayed() {
            return;
        }
        let value = self.trips.decider().filter(|_| input != Input::Unknown);
        let value = value.and_then(|name| facts.metric(name)).map(|(value, _)| value.clone());
        alerts.step(self.as_ref(index), device, Event { input, value, now }, out);
    }
}

/// The condition while the alert fires; none if it is the same.
fn hysteresis(spec: &AlertRule, trips: &Program) -> Result<Option<Program>, String> {
    let distance = spec.hysteresis;
    if !distance.is_finite() || distance < 0.0 {
        return Err(format!("hysteresis is {distance}; set it to a number that is not below 0, or remove the line"));
    }
    if distance == 0.0 {
        return Ok(None);
    }
    let mend = "hysteresis needs an expression that is one comparison of a metric with a number by < <= > or >=, with a \
                limit within all numbers, as in \"temperature > 80\"; write it so, or remove the line";
    trips.released_by(distance).map(Some).ok_or_else(|| mend.to_owned())
}

fn pattern(spec: &AlertRule) -> Result<Option<Glob>, String> {
    match spec.on.as_deref() {
        None => Ok(None),
        Some("") => {
            Err("`on` is empty and matches no device; name one as in \"press*\", or remove the line".to_owned())
        }
        Some(on) if on.len() > PATTERN_BYTES_MAX => {
            let bytes = on.len();
            Err(format!("`on` has {bytes} bytes, more than {PATTERN_BYTES_MAX}; shorten it with *"))
        }
        Some(on) => Ok(Some(Glob::new(on))),
    }
}
