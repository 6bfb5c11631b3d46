//! Believable signals of a machine, with believable faults, from a seed.

use std::f64::consts::TAU;

/// A reading above this is hot; rule and simulator agree on it.
pub(in crate::cli) const HOT: f64 = 80.0;

/// A reading at or below this is cool again.
pub(in crate::cli) const COOL: f64 = 75.0;

/// Seconds from one hot spell of a device to the next.
const CYCLE: f64 = 12.0;

/// One simulated machine: temperature with a hot spell every [`CYCLE`], vibration while it runs, a stop now and then.
#[derive(Debug)]
pub(in crate::cli) struct Device {
    name: String,
    random: fastrand::Rng,
    phase: f64,
    drift: f64,
    hot: bool,
    events: u64,
}

/// What a device sends.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::cli) struct Outgoing {
    /// MQTT topic.
    pub(in crate::cli) topic: String,
    /// JSON, or nearly so.
    pub(in crate::cli) payload: String,
    /// What it is to the statistics.
    pub(in crate::cli) kind: Kind,
}

/// What a message is to the statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum Kind {
    /// A state reading.
    Reading,
    /// A state reading that makes the temperature alert fire or resolve.
    Crossing,
    /// The n-th event of the device; it is sent again until it is acknowledged.
    Event(u64),
}

impl Device {
    /// The `index`-th device of a seed.
    pub(in crate::cli) fn new(index: u32, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(index));
        let phase = random.f64();
        Self { name: format!("sim-{index:04}"), random, phase, drift: 0.0, hot: false, events: 0 }
    }

    /// The device's name, also its MQTT client id.
    pub(in crate::cli) fn name(&self) -> &str {
        &self.name
    }

    /// The message at `at` seconds of the device's life; every tenth is an event.
    pub(in crate::cli) fn next(&mut self, at: f64, count: u64) -> Outgoing {
        if count % 10 == 9 {
            self.events += 1;
            let payload = format!(r#"{{"event":"part_done","device":"{}","n":{}}}"#, self.name, self.events);
            let topic = format!("sim/{}/event", self.name);
            return Outgoing { topic, payload, kind: Kind::Event(self.events) };
        }
        let turn = (at / CYCLE + self.phase).fract();
        self.drift = (self.drift + self.random.f64() - 0.5).clamp(-3.0, 3.0);
        let temperature = 62.0 + 25.0 * (TAU * turn).sin().max(0.0) + self.drift;
        let running = turn < 0.9;
        let vibration = if running { 2.0 + 3.0 * (TAU * (turn + 0.3)).sin().abs() } else { 0.0 };
        let (text, seen) = self.sensor(temperature);
        let kind = if seen.is_some_and(|t| self.crosses(t)) { Kind::Crossing } else { Kind::Reading };
        let payload = format!(r#"{{"temperature":{text},"vibration":{vibration:.2},"running":{running}}}"#);
        Outgoing { topic: format!("sim/{}/state", self.name), payload, kind }
    }

    /// One reading in 200 is missing, one in 500 is a bare `nan`, as real firmware sends it.
    fn sensor(&mut self, temperature: f64) -> (String, Option<f64>) {
        match self.random.u32(..1000) {
            0..5 => ("null".into(), None),
            5..7 => ("nan".into(), None),
            _ => {
                let text = format!("{temperature:.1}");
                let seen = text.parse().ok();
                (text, seen)
            }
        }
    }

    fn crosses(&mut self, temperature: f64) -> bool {
        let hot = if self.hot { temperature > COOL } else { temperature > HOT };
        std::mem::replace(&mut self.hot, hot) != hot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(seed: u64) -> Vec<Outgoing> {
        let mut device = Device::new(3, seed);
        (0..600_u32).map(|n| device.next(f64::from(n) * 0.1, u64::from(n))).collect()
    }

    #[test]
    fn the_same_seed_gives_the_same_readings() {
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    }

    #[test]
    fn a_minute_has_hot_spells_and_numbered_events() {
        let sent = run(1);
        let crossings = sent.iter().filter(|m| m.kind == Kind::Crossing).count();
        assert!((6..=14).contains(&crossings), "{crossings}");
        let events: Vec<_> =
            sent.iter().filter_map(|m| if let Kind::Event(n) = m.kind { Some(n) } else { None }).collect();
        assert_eq!(events, (1..=60).collect::<Vec<_>>());
    }
}
