//! How long to wait before trying again.

use std::time::Duration;

/// Doublings that are counted; beyond them any sensible first delay has reached its largest.
const DOUBLINGS_MAX: u32 = 32;

/// Exponential back-off with jitter: each delay lies between half and the whole of a step; the step starts at `first`
/// and doubles up to `max`. Two gateways with different seeds do not come back in the same instant.
///
/// It reads no clock and no source of chance: the same seed gives the same delays.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    max: Duration,
    tries: u32,
    chance: u64,
}

impl Backoff {
    /// Delays from `first / 2` up to `max`, spread by `seed`.
    pub fn new(first: Duration, max: Duration, seed: u64) -> Self {
        Self { first, max, tries: 0, chance: seed }
    }

    /// The delay before the next try.
    pub fn next_delay(&mut self) -> Duration {
        let step = self.first.saturating_mul(1 << self.tries.min(DOUBLINGS_MAX - 1)).min(self.max);
        self.tries = self.tries.saturating_add(1);
        let half = step / 2;
        half + half.mul_f64(self.fraction())
    }

    /// The last try worked: the next delay is a first one again.
    pub fn reset(&mut self) {
        self.tries = 0;
    }

    /// Tries since the last reset.
    pub fn tries(&self) -> u32 {
        self.tries
    }

    /// The next number of `SplitMix64`, as a fraction below 1.
    fn fraction(&mut self) -> f64 {
        self.chance = self.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.chance;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_millis(500);
    const MAX: Duration = Duration::from_secs(30);

    fn delays(seed: u64, count: usize) -> Vec<Duration> {
        let mut backoff = Backoff::new(FIRST, MAX, seed);
        (0..count).map(|_| backoff.next_delay()).collect()
    }

    #[test]
    fn each_delay_lies_between_half_and_the_whole_of_its_step() {
        for seed in 0..200 {
            let steps = [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000].map(Duration::from_millis);
            for (delay, step) in delays(seed, steps.len()).into_iter().zip(steps) {
                assert!(step / 2 <= delay && delay <= step, "{delay:?} is not of step {step:?}");
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_delays_and_another_seed_others() {
        assert_eq!(delays(7, 6), delays(7, 6));
        assert_ne!(delays(7, 6), delays(8, 6));
    }

    #[test]
    fn a_reset_starts_again_at_the_first_delay() {
        let mut backoff = Backoff::new(FIRST, MAX, 1);
        for _ in 0..6 {
            backoff.next_delay();
        }
        assert_eq!(backoff.tries(), 6);
        backoff.reset();
        assert!(backoff.next_delay() <= FIRST);
    }

    #[test]
    fn a_million_tries_do_not_overflow() {
        let mut backoff = Backoff::new(FIRST, MAX, 3);
        backoff.tries = u32::MAX - 1;
        for _ in 0..4 {
            assert!(backoff.next_delay() <= MAX);
        }
    }
}
