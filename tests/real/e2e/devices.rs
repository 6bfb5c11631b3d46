//! What the devices say, from a seed: each reading has its number in it, so that any state can be told from any other.

use std::f64::consts::TAU;
use std::time::Duration;

use crate::mqtt::Message;

/// Devices.
pub(crate) const DEVICES: usize = 50;

/// Readings of one device; 20 000 in all.
pub(crate) const READINGS: u64 = 400;

/// From one reading of a device to the next: 320 a second in all.
const PERIOD: Duration = Duration::from_micros(156_250);

/// One event after so many readings.
const EVENT_EVERY: u64 = 8;

/// The last readings do not swing any more, so that delays of rules run out on them.
const STEADY: u64 = 8;

/// Sources and alerts of the gateway: a limit with hysteresis, an on-delay, and a conjunction.
pub(crate) const CONFIG: &str = r#"
[[source]]
topic = "dev/{device}/state"
format = "json"
[source.metrics]
n = {}
temperature = { unit = "Cel" }
vibration = { unit = "mm/s" }
running = {}

[[source]]
topic = "dev/{device}/event"
class = "event"

[[alert]]
alert = "Hot"
expr = "temperature > 80"
hysteresis = 5
severity = "critical"
annotations = { reading = "{n}" }

[[alert]]
alert = "Shaking"
expr = "vibration > 5"
for = "500ms"
severity = "high"
annotations = { reading = "{n}" }

[[alert]]
alert = "Strained"
expr = "running && temperature > 70"
severity = "low"
annotations = { reading = "{n}" }
"#;

/// The alerts' names.
pub(crate) const ALERTS: [&str; 3] = ["Hot", "Shaking", "Strained"];

/// The alert that time decides, not a message.
pub(crate) const TIMED: &str = "Shaking";

/// One reading.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Reading {
    /// Its number, from 1.
    pub(crate) n: u64,
    /// Degrees, two decimals.
    pub(crate) temperature: f64,
    /// Millimetres a second, two decimals.
    pub(crate) vibration: f64,
    /// Whether the machine runs.
    pub(crate) running: bool,
}

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum What {
    /// A reading.
    Reading(Reading),
    /// The n-th event, from 1.
    Event(u64),
}

/// A device with everything it will say.
pub(crate) struct Device {
    /// Its name.
    pub(crate) name: String,
    /// What its messages are, in order.
    pub(crate) what: Vec<What>,
    /// The messages.
    pub(crate) messages: Vec<Message>,
}

impl Device {
    /// The `index`-th device of a seed.
    pub(crate) fn new(index: usize, seed: u64) -> Self {
        let name = format!("dev-{index:02}");
        let mut random = fastrand::Rng::with_seed(seed.wrapping_mul(1000) + index as u64);
        let phase = random.f64();
        let offset = PERIOD.mul_f64(index as f64 / DEVICES as f64);
        let (mut what, mut messages) = (Vec::new(), Vec::new());
        for n in 1..=READINGS {
            let due = offset + PERIOD * (n - 1) as u32;
            let reading = reading(n, index, phase, &mut random);
            let payload = format!(
                r#"{{"n":{n},"temperature":{:.2},"vibration":{:.2},"running":{}}}"#,
                reading.temperature, reading.vibration, reading.running
            );
            what.push(What::Reading(reading));
            messages.push(Message { topic: format!("dev/{name}/state"), payload, due });
            if n % EVENT_EVERY == 0 {
                let number = n / EVENT_EVERY;
                what.push(What::Event(number));
                let payload = format!(r#"{{"device":"{name}","number":{number}}}"#);
                messages.push(Message { topic: format!("dev/{name}/event"), payload, due });
            }
        }
        Self { name, what, messages }
    }

    /// A reading by its number.
    pub(crate) fn reading(&self, n: u64) -> Option<Reading> {
        self.what.iter().find_map(|what| match what {
            What::Reading(reading) if reading.n == n => Some(*reading),
            _ => None,
        })
    }

    /// Whether each alert must be firing after the last reading, when all delays have run out.
    pub(crate) fn firing_at_the_end(&self) -> [bool; 3] {
        let last = self.reading(READINGS).expect("every device has its last reading");
        [last.temperature > 80.0, last.vibration > 5.0, last.running && last.temperature > 70.0]
    }

    /// How often the hysteresis of `Hot` must have switched if no reading came twice.
    pub(crate) fn switches_of_hot(&self) -> usize {
        let mut hot = false;
        let readings =
            self.what.iter().filter_map(|what| if let What::Reading(reading) = what { Some(reading) } else { None });
        let switches = readings.filter(|reading| {
            let now = reading.temperature > if hot { 75.0 } else { 80.0 };
            std::mem::replace(&mut hot, now) != now
        });
        switches.count()
    }
}

/// A slow swing through all limits with noise; steady at the end, in a state that the device's number decides, far from
/// every limit.
fn reading(n: u64, index: usize, phase: f64, random: &mut fastrand::Rng) -> Reading {
    let at = (n as f64 * PERIOD.as_secs_f64() / 11.0 + phase).fract();
    let noise = 2.0 * random.f64() - 1.0;
    let (temperature, vibration, running) = if n > READINGS - STEADY {
        let bit = |k: usize| index >> k & 1 == 1;
        (if bit(0) { 88.0 } else { 60.0 }, if bit(1) { 7.0 } else { 2.5 }, bit(2))
    } else {
        (66.0 + 20.0 * (TAU * at).sin(), 4.0 + 3.0 * (TAU * (at + 0.3)).cos(), (at * 4.0).fract() < 0.8)
    };
    let round = |value: f64| (value * 100.0).round() / 100.0;
    Reading { n, temperature: round(temperature + noise), vibration: round(vibration + 0.3 * noise), running }
}
