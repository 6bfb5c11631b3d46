//! How much is sent before an acknowledgement is waited for.

/// A failed session shrinks the window to this part of its bounds.
const SHRINK: usize = 16;

/// The window of one delivery. It starts at its bounds, shrinks to a sixteenth when the upstream does not answer and
/// doubles with each whole window that was acknowledged: a link that is slow or just back is not flooded.
#[derive(Debug, Clone)]
pub(super) struct Window {
    max: Limit,
    now: Limit,
}

/// Records and bytes, each at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limit {
    pub(super) records: usize,
    pub(super) bytes: usize,
}

impl Window {
    pub(super) fn new(max: Limit) -> Self {
        Self { max, now: max }
    }

    pub(super) fn limit(&self) -> Limit {
        self.now
    }

    pub(super) fn grow(&mut self) {
        let double = |now: usize, max: usize| now.saturating_mul(2).min(max);
        self.now = Limit {
            records: double(self.now.records, self.max.records),
            bytes: double(self.now.bytes, self.max.bytes),
        };
    }

    pub(super) fn shrink(&mut self) {
        self.now = Limit { records: (self.max.records / SHRINK).max(1), bytes: (self.max.bytes / SHRINK).max(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_comes_back_to_its_bounds_by_doubling() {
        let max = Limit { records: 1000, bytes: 1 << 20 };
        let mut window = Window::new(max);
        assert_eq!(window.limit(), max);
        window.shrink();
        assert_eq!(window.limit(), Limit { records: 62, bytes: 1 << 16 });
        for _ in 0..5 {
            window.grow();
        }
        assert_eq!(window.limit(), max);
    }

    #[test]
    fn the_smallest_window_still_holds_a_record() {
        let mut window = Window::new(Limit { records: 3, bytes: 5 });
        window.shrink();
        assert_eq!(window.limit(), Limit { records: 1, bytes: 1 });
    }
}
