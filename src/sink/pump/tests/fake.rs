//! A fake upstream, fake lanes, and a pump between them.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::sync::Mutex;

use bytes::Bytes;
use tokio::sync::Notify;

use super::super::*;
use crate::model::{DeltaType, Stamp, Uid};
use crate::queue::Gap;
use crate::runtime::clock::SystemClock;
use crate::runtime::metrics::SinkLabel;

pub(super) const MS: Duration = Duration::from_millis(1);

/// What the fake upstream does with the next delivery; nothing planned means that it takes it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Plan {
    /// Stores the first `stored` records, acknowledges the first `acked`, then the link breaks.
    Break {
        stored: usize,
        acked: usize,
    },
    /// Stores and acknowledges so many, and gives no reason for the rest.
    StopShort(usize),
    Hang,
    /// Waits for `World::go`, then takes it.
    Wait,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) opens_fail: VecDeque<SinkError>,
    pub(super) plans: VecDeque<Plan>,
    /// Seqs that are rejected, with all that is in their batch.
    pub(super) poison: HashSet<u64>,
    /// Lanes whose topic does not exist.
    pub(super) missing: Vec<Lane>,
    pub(super) announcements_fail: usize,
    pub(super) stored: Vec<(Lane, u64)>,
    pub(super) deliveries: Vec<Vec<u64>>,
    pub(super) notices: Vec<GapNotice>,
    pub(super) acks: Vec<(Lane, u64)>,
    pub(super) opened: usize,
    pub(super) closed: usize,
}

/// The upstream and the durable cursors; tells each change.
#[derive(Default)]
pub(super) struct World {
    pub(super) state: Mutex<State>,
    pub(super) changed: Notify,
    pub(super) go: Notify,
}

impl World {
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let value = change(&mut self.state.lock().unwrap());
        self.changed.notify_one();
        value
    }

    pub(super) fn get<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.state.lock().unwrap())
    }

    pub(super) async fn until(&self, holds: impl Fn(&State) -> bool) {
        while !self.get(&holds) {
            self.changed.notified().await;
        }
    }

    pub(super) fn stored(&self, lane: Lane) -> Vec<u64> {
        self.get(|state| state.stored.iter().filter(|(of, _)| *of == lane).map(|(_, seq)| *seq).collect())
    }

    pub(super) fn cursor(&self, lane: Lane) -> u64 {
        self.get(|state| state.acks.iter().filter(|(of, _)| *of == lane).map(|(_, seq)| *seq).max().unwrap_or(0))
    }
}

pub(super) fn unreachable(doing: &str) -> SinkError {
    SinkError::Unreachable { doing: doing.to_owned(), source: Box::new(io::Error::other("link is down")) }
}

pub(super) struct FakeSink {
    name: Arc<str>,
    world: Arc<World>,
}

pub(super) struct FakeSession(Arc<World>);

impl Sink for FakeSink {
    type Session = FakeSession;

    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn request_timeout(&self) -> Duration {
        MS
    }

    async fn open(&mut self) -> Result<FakeSession, SinkError> {
        tokio::task::yield_now().await;
        let failure = self.world.change(|state| state.opens_fail.pop_front());
        if let Some(error) = failure {
            return Err(error);
        }
        self.world.change(|state| state.opened += 1);
        Ok(FakeSession(Arc::clone(&self.world)))
    }
}

impl Session for FakeSession {
    async fn deliver(&mut self, records: &[Record]) -> Delivered {
        tokio::task::yield_now().await;
        let plan = self.0.change(|state| {
            state.deliveries.push(records.iter().map(|record| record.seq.0).collect());
            state.plans.pop_front()
        });
        let (stored, acked, error) = match plan {
            Some(Plan::Hang) => std::future::pending().await,
            Some(Plan::Break { stored, acked }) => (stored, acked, Some(unreachable("sending"))),
            Some(Plan::StopShort(acked)) => (acked, acked, None),
            Some(Plan::Wait) => {
                self.0.go.notified().await;
                (records.len(), records.len(), None)
            }
            None => match self.0.get(|state| refusal(state, records)) {
                Some(error) => (0, 0, Some(error)),
                None => (records.len(), records.len(), None),
            },
        };
        self.0.change(|state| state.stored.extend(records.iter().take(stored).map(|r| (r.lane, r.seq.0))));
        Delivered { acked, error }
    }

    async fn announce(&mut self, notice: &GapNotice) -> Result<(), SinkError> {
        self.0.change(|state| {
            state.notices.push(*notice);
            if state.announcements_fail > 0 {
                state.announcements_fail -= 1;
                return Err(unreachable("announcing"));
            }
            state.stored.push((notice.lane, notice.to.0));
            Ok(())
        })
    }

    async fn close(self) {
        self.0.change(|state| state.closed += 1);
    }
}

fn refusal(state: &State, records: &[Record]) -> Option<SinkError> {
    let source = || Box::new(io::Error::other("no"));
    if records.iter().any(|record| state.poison.contains(&record.seq.0)) {
        return Some(SinkError::Rejected { doing: "sending".to_owned(), source: source() });
    }
    let lane = records.first().map(|record| record.lane)?;
    state.missing.contains(&lane).then(|| SinkError::Misconfigured {
        what: format!("topic of {lane} does not exist"),
        mend: "create it".to_owned(),
        source: source(),
    })
}

/// A lane as a plain queue.
pub(super) struct FakeReader {
    lane: Lane,
    waiting: Arc<Mutex<VecDeque<Record>>>,
    flight: Vec<Record>,
    gap: Option<Gap>,
    told: bool,
}

impl Reader for FakeReader {
    fn lane(&self) -> Lane {
        self.lane
    }

    fn pop(&mut self, records_max: usize, bytes_max: usize) -> Vec<Record> {
        let mut waiting = self.waiting.lock().unwrap();
        let (mut popped, mut bytes) = (Vec::new(), 0);
        while popped.len() < records_max {
            let Some(record) = waiting.front().filter(|r| bytes == 0 || bytes + r.cost() <= bytes_max) else { break };
            bytes += record.cost();
            popped.extend(waiting.pop_front());
        }
        self.flight.extend(popped.iter().cloned());
        popped
    }

    fn ack(&mut self, count: usize) -> Option<Seq> {
        self.gap = self.gap.filter(|_| count == 0);
        self.flight.drain(..count).map(|record| record.seq).max()
    }

    fn rewind(&mut self) -> Vec<ObjectKey> {
        self.told = false;
        let mut waiting = self.waiting.lock().unwrap();
        let keys = self.flight.iter().map(|record| record.key.clone()).collect();
        for record in self.flight.drain(..).rev() {
            waiting.push_front(record);
        }
        keys
    }

    /// Under the number that the key's fake record has.
    fn resend(&mut self, keys: Vec<ObjectKey>) {
        let again = keys.into_iter().map(|key| {
            let seq = key.name().parse().unwrap();
            record(self.lane, seq)
        });
        self.waiting.lock().unwrap().extend(again);
    }

    fn take_gap(&mut self) -> Option<Gap> {
        self.gap.filter(|_| !std::mem::replace(&mut self.told, true))
    }
}

/// The key's name is the number.
pub(super) fn record(lane: Lane, seq: u64) -> Record {
    Record {
        lane,
        delta: DeltaType::Updated,
        seq: Seq(seq),
        epoch: Epoch(1),
        key: ObjectKey::new("default", seq.to_string()),
        uid: Uid::default(),
        created_at: Stamp::default(),
        at: Stamp::default(),
        body: Bytes::from_static(b"{}"),
    }
}

/// A pump with its world around it.
pub(super) struct Rig {
    pub(super) world: Arc<World>,
    pub(super) waiting: [Arc<Mutex<VecDeque<Record>>>; 3],
    pub(super) gaps: [Option<Gap>; 3],
    pub(super) head: Mutex<Option<watch::Sender<Seq>>>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) timing: Timing,
}

impl Rig {
    pub(super) fn new() -> Self {
        let timing = Timing {
            request: MS,
            open_max: 500 * MS,
            deliver_max: 500 * MS,
            close_max: 500 * MS,
            stop_max: 500 * MS,
            retry: (MS, 2 * MS),
            denied: (MS, 2 * MS),
            window: Limit { records: 10, bytes: 1 << 20 },
        };
        Self {
            world: Arc::default(),
            waiting: [Arc::default(), Arc::default(), Arc::default()],
            gaps: [None; 3],
            head: Mutex::new(Some(watch::channel(Seq::ZERO).0)),
            metrics: Arc::default(),
            clock: Arc::new(SystemClock),
            timing,
        }
    }

    pub(super) fn add(&self, lane: Lane, seqs: impl IntoIterator<Item = u64>) {
        let waiting = &self.waiting[lane as usize - 1];
        waiting.lock().unwrap().extend(seqs.into_iter().map(|seq| record(lane, seq)));
        if let Some(head) = &*self.head.lock().unwrap() {
            head.send_modify(|head| *head = head.next());
        }
    }

    pub(super) fn plan(&self, plans: impl IntoIterator<Item = Plan>) {
        self.world.change(|state| state.plans.extend(plans));
    }

    /// Runs the pump while `story` is told, then stops it.
    pub(super) async fn run(&self, story: impl Future<Output = ()>) {
        let readers = Lane::ALL.map(|lane| FakeReader {
            lane,
            waiting: Arc::clone(&self.waiting[lane as usize - 1]),
            flight: Vec::new(),
            gap: self.gaps[lane as usize - 1],
            told: false,
        });
        let sink = FakeSink { name: "cloud".into(), world: Arc::clone(&self.world) };
        let world = Arc::clone(&self.world);
        let ack = move |lane, seq: Seq| world.change(|state| state.acks.push((lane, seq.0)));
        let (clock, metrics) = (Arc::clone(&self.clock), Arc::clone(&self.metrics));
        let parts = Parts { clock, metrics, timing: self.timing.clone() };
        let pump = Pump::new(sink, readers, Epoch(1), ack, parts);
        let shutdown = CancellationToken::new();
        let story = async {
            story.await;
            shutdown.cancel();
        };
        let head = self.head.lock().unwrap().as_ref().unwrap().subscribe();
        let both = async { tokio::join!(pump.run(head, &shutdown), story) };
        timeout(Duration::from_secs(5), both).await.expect("the pump stands still");
        let (opened, closed) = self.world.get(|state| (state.opened, state.closed));
        assert_eq!(opened, closed, "a session was not closed");
    }

    /// Runs until `seq` is acknowledged in `lane`.
    pub(super) async fn run_to(&self, lane: Lane, seq: u64) {
        let there = |state: &State| state.acks.contains(&(lane, seq));
        self.run(self.world.until(there)).await;
    }

    pub(super) fn failures(&self) -> u64 {
        self.metrics.sink_failures.get_or_create(&SinkLabel { sink: "cloud".to_owned() }).get()
    }

    pub(super) fn is_up(&self) -> bool {
        self.metrics.sink_up.get_or_create(&SinkLabel { sink: "cloud".to_owned() }).get() == 1
    }

    pub(super) fn delivered(&self, lane: Lane) -> u64 {
        let labels = SinkLane { sink: "cloud".to_owned(), lane: lane.into() };
        self.metrics.delivered.get_or_create(&labels).get()
    }

    pub(super) fn dropped(&self, lane: Lane) -> u64 {
        self.metrics.queue_dropped.get_or_create(&lane.into()).get()
    }
}
