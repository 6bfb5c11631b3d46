//! `DropLog`: one warning a lane and minute for what a bound dropped.

use std::time::Duration;

use tracing::warn;

use super::view::Dropped;
use crate::model::Millis;

const EVERY: Duration = Duration::from_mins(1);

/// What was dropped since the last warning, by lane.
#[derive(Debug, Default)]
pub(super) struct DropLog {
    lanes: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    dropped: Dropped,
    told_at: Option<Millis>,
}

impl DropLog {
    /// Records were dropped.
    pub(super) fn note(&mut self, dropped: Dropped) {
        match self.lanes.iter_mut().find(|entry| entry.dropped.lane == dropped.lane) {
            Some(entry) => {
                let so_far = entry.dropped;
                let from = if so_far.lost > 0 { so_far.from } else { dropped.from };
                entry.dropped = Dropped { from, lost: so_far.lost + dropped.lost, ..dropped };
            }
            None => self.lanes.push(Entry { dropped, told_at: None }),
        }
    }

    /// Warns of what is new, at most once a minute for each lane. Returns how many warnings it gave.
    pub(super) fn tell(&mut self, now: Millis) -> usize {
        let due = |entry: &&mut Entry| {
            entry.dropped.lost > 0 && entry.told_at.is_none_or(|told_at| now.since(told_at) >= EVERY)
        };
        let mut told = 0;
        for entry in self.lanes.iter_mut().filter(due) {
            let Dropped { lane, from, to, lost } = entry.dropped;
            warn!(%lane, lost, %from, %to, "the bound of a lane dropped its oldest records before every sink had them");
            entry.dropped.lost = 0;
            entry.told_at = Some(now);
            told += 1;
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Lane, Seq};

    fn dropped(lane: Lane, from: u64, to: u64, lost: u64) -> Dropped {
        Dropped { lane, from: Seq(from), to: Seq(to), lost }
    }

    #[test]
    fn drops_within_a_minute_are_one_warning_with_their_sum_and_range() {
        let mut log = DropLog::default();
        log.note(dropped(Lane::Event, 1, 3, 2));
        log.note(dropped(Lane::Event, 4, 9, 5));
        assert_eq!(log.lanes.first().map(|entry| entry.dropped), Some(dropped(Lane::Event, 1, 9, 7)));
        assert_eq!(log.tell(Millis(0)), 1);
        log.note(dropped(Lane::Event, 10, 12, 1));
        assert_eq!(log.tell(Millis(59_999)), 0);
        assert_eq!(log.lanes.first().map(|entry| entry.dropped), Some(dropped(Lane::Event, 10, 12, 1)));
        assert_eq!(log.tell(Millis(60_000)), 1);
        assert_eq!(log.tell(Millis(999_999)), 0, "nothing new");
    }

    #[test]
    fn each_lane_has_its_own_minute() {
        let mut log = DropLog::default();
        log.note(dropped(Lane::Event, 1, 1, 1));
        assert_eq!(log.tell(Millis(0)), 1);
        log.note(dropped(Lane::Alert, 2, 2, 1));
        assert_eq!(log.tell(Millis(1)), 1);
    }
}
