//! Power cuts: the real daemon on a real file system, and what is left on a disk whose cache is gone.
//!
//! The daemon works under load on a file system whose writes and flushes are logged; it is stopped, killed and started
//! meanwhile. Then power is cut at many places of that log: what was flushed before is there, of the rest each write
//! by chance, some of them torn. What is left is repaired, mounted and opened, and held against the acknowledgements
//! that had come by then. Two controls must lose: a writer that does not sync, and a disk that does not flush.

mod load;
mod oracle;
mod rig;

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use self::load::{Client, Kind, publish};
use self::oracle::Found;
use self::rig::{Cuts, Disk, Meter, Rig};
use crate::gateway::Gateway;
use crate::parts::{folder, say, seed};

/// Cuts, if `TIDEGATE_POWER_CUTS` does not say how many.
const CUTS: usize = 100;

/// Every so many cuts the daemon itself is started on what is left.
const STARTS: usize = 10;

/// Every so many cuts the disk lies.
const LIES: usize = 10;

/// Images of so many cuts that lost something are kept.
const KEPT: u32 = 3;

const GATEWAY: &str = "power";
const RULE: &str = "Level";

/// Deadband of one source.
const BAND: usize = 5;

/// Bound of the events, which the load reaches.
const EVENT_BYTES: u64 = 8 << 20;

/// The least of each bound, so that everything happens often.
const CONFIG: &str = r#"
[store]
checkpoint_bytes = "8MiB"
wear_gb_per_day = 10000

[queue]
event_bytes_max = "8MiB"

[[source]]
topic = "state/{device}"

[[source]]
topic = "band/{device}"
uplink = { deadband = 5 }

[[source]]
topic = "event/{device}"
class = "event"

[[alert]]
alert = "Level"
expr = "level > 50"
"#;

#[test]
fn no_power_cut_loses_what_was_acknowledged() {
    rig::require();
    let cuts = std::env::var("TIDEGATE_POWER_CUTS").ok().map_or(CUTS, |text| text.parse().expect("a number"));
    let mut random = fastrand::Rng::with_seed(seed());
    let mut home = folder("power");
    let rig = Rig::new(home.path(), if random.bool() { 1024 } else { 4096 });
    let history = History::make(&rig);
    let mut log = rig.finish();
    let (entries, flushes, made) = (log.len(), log.flushes(), history.start.elapsed());
    say(&format!("{entries} writes and flushes, {flushes} of them flushes, in {made:.0?}; {history}"));
    let mut score = Score::default();
    for (n, at) in places(&log, &history, cuts, &mut random).into_iter().enumerate() {
        let mut chance = random.fork();
        if n % LIES == LIES / 2 {
            score.lying += 1;
            let image = log.play(at, Disk::Lying, &mut chance, "lying.raw");
            score.lying_lost += u32::from(!judge(&log, &image, at, &history, false).wrong.is_empty());
        }
        let again = chance.clone();
        let image = log.play(at, Disk::Honest, &mut chance, "cut.raw");
        let daemon = n % STARTS == 0;
        let Verdict { wrong, control_lost, put_aside } = judge(&log, &image, at, &history, daemon);
        score.cuts += 1;
        score.control_lost += u32::from(control_lost);
        score.put_aside += u32::from(put_aside);
        score.lost += u32::from(!wrong.is_empty());
        if !wrong.is_empty() && score.lost <= KEPT {
            home.disable_cleanup(true);
            let image = log.play(at, Disk::Honest, &mut again.clone(), &format!("lost-{n}.raw"));
            let some: Vec<_> = wrong.iter().take(9).map(String::as_str).collect();
            let (some, all) = (some.join("\n  "), wrong.len());
            say(&format!("cut {n} behind entry {at} is kept as {}; {all} losses:\n  {some}", image.display()));
        }
    }
    say(&format!("{score:?} in {:.0?}", history.start.elapsed()));
    assert_eq!(score.lost, 0, "cuts that lost something; what is left is in {}", home.path().display());
    assert!(score.control_lost > 0, "a writer that does not sync must lose something");
    assert!(score.lying_lost > 0 || score.lying < 5, "a disk that does not flush must lose something");
}

/// What came out.
#[derive(Debug, Default)]
struct Score {
    cuts: u32,
    /// Cuts that lost something acknowledged.
    lost: u32,
    /// Cuts after which the keyed store was rebuilt from the log.
    put_aside: u32,
    /// Cuts in which the writer without sync lost something.
    control_lost: u32,
    lying: u32,
    /// Cuts with a lying disk that lost something.
    lying_lost: u32,
}

/// What happened while the log was written.
struct History {
    start: Instant,
    clients: Vec<Arc<Client>>,
    /// Length of the log when the file system was mounted.
    mounted: u64,
    /// Length of the log when something rare had just happened: a start, a stop, a new or a recycled log segment.
    spots: Vec<u64>,
    /// Length of the log after each record of the writer without sync.
    control: Vec<u64>,
}

impl History {
    /// Three lives of a gateway under load: stopped, killed, killed.
    fn make(rig: &Rig) -> Self {
        let (meter, start) = (rig.meter(), Instant::now());
        let mounted = meter.now();
        let mut gateway = gateway_on(&rig.path().join("data"));
        let mut clients = Vec::new();
        for (kind, name, devices) in [(Kind::State, "state", 20), (Kind::Band, "band", 10), (Kind::Event, "event", 10)]
        {
            clients.extend([0, 1, 2, 3].map(|n| Client::new(&format!("{name}{n}"), kind, devices, n % 2 == 0)));
        }
        let over = Over::default();
        let watching = watch(rig.path().join("data/store/log"), meter.clone(), over.0.clone());
        let writing = write_without_sync(rig.path().join("control"), meter.clone(), over.0.clone());
        let mut rare = vec![mounted];
        for (life, checkpoints) in [(0, 3.0), (1, 1.0), (2, 2.0)] {
            gateway.start();
            rare.push(meter.now());
            work(&gateway, &clients, &meter, checkpoints);
            if life == 0 {
                assert_eq!(gateway.stop(), Some(0), "SIGTERM is a clean stop");
            } else {
                gateway.kill();
            }
            rare.push(meter.now());
        }
        drop(over);
        let mut spots = watching.join().expect("the watcher does not panic");
        spots.extend(rare);
        let control = writing.join().expect("the writer does not panic");
        Self { start, clients, mounted, spots, control }
    }
}

/// Ends the threads that it was given to when it goes.
#[derive(Default)]
struct Over(Arc<AtomicBool>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl std::fmt::Display for History {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let acks: usize = self.clients.iter().map(|client| client.acks().len()).sum();
        let receipts = self.clients.iter().flat_map(|client| client.acks()).filter(|ack| ack.seq.is_some()).count();
        let spots = self.spots.len();
        write!(f, "{acks} acknowledgements, {receipts} receipts, {spots} starts, stops and changes of log segments")
    }
}

fn gateway_on(data: &Path) -> Gateway {
    let gateway = Gateway::new(GATEWAY, CONFIG);
    let text = fs::read_to_string(gateway.config()).expect("it was written");
    let own = gateway.file("data").display().to_string();
    fs::write(gateway.config(), text.replace(&own, &data.display().to_string())).expect("the folder is writable");
    gateway
}

/// Load until so many checkpoints are made in this life, for at least 3 s; then everything is acknowledged.
fn work(gateway: &Gateway, clients: &[Arc<Client>], meter: &Meter, checkpoints: f64) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
    let (stop, mut tasks, from) = (Arc::new(AtomicBool::new(false)), JoinSet::new(), Instant::now());
    for client in clients {
        tasks.spawn_on(publish(client.clone(), gateway.mqtt, meter.clone(), stop.clone()), runtime.handle());
    }
    while from.elapsed() < Duration::from_secs(3) || gateway.sum("tidegate_store_checkpoints_total") < checkpoints {
        assert!(from.elapsed() < Duration::from_mins(1), "not {checkpoints} checkpoints within 60 s");
        thread::sleep(Duration::from_millis(200));
    }
    stop.store(true, Ordering::SeqCst);
    let all = async {
        while let Some(end) = tasks.join_next().await {
            end.expect("a publisher works to its end");
        }
    };
    let ended = runtime.block_on(async { tokio::time::timeout(Duration::from_mins(1), all).await });
    assert!(ended.is_ok(), "not everything was acknowledged after 60 s");
}

/// Notes when names in the log's folder change: a checkpoint has recycled segments, or the log goes on in another.
fn watch(dir: PathBuf, meter: Meter, over: Arc<AtomicBool>) -> JoinHandle<Vec<u64>> {
    thread::spawn(move || {
        let (mut spots, mut last) = (Vec::new(), Vec::new());
        while !over.load(Ordering::SeqCst) {
            let mut names: Vec<_> =
                fs::read_dir(&dir).into_iter().flatten().flatten().map(|entry| entry.file_name()).collect();
            names.sort();
            if names != last {
                spots.push(meter.now());
                last = names;
            }
            thread::sleep(Duration::from_millis(2));
        }
        spots
    })
}

/// Appends bytes that count up, one at a time, and syncs nothing.
fn write_without_sync(path: PathBuf, meter: Meter, over: Arc<AtomicBool>) -> JoinHandle<Vec<u64>> {
    thread::spawn(move || {
        let mut file = File::create(path).expect("the file system is writable");
        let mut notes = Vec::new();
        while !over.load(Ordering::SeqCst) {
            file.write_all(&[1]).expect("the file system has room");
            notes.push(meter.now());
            thread::sleep(Duration::from_millis(5));
        }
        notes
    })
}

/// Where power is cut: a third near rare things, the others anywhere after the mount; in order.
fn places(log: &Cuts, history: &History, cuts: usize, random: &mut fastrand::Rng) -> Vec<usize> {
    let first = log.entries_at(history.mounted) + 1;
    let mut place = |n: usize| match n % 3 {
        0 => {
            let spot = log.entries_at(*random.choice(&history.spots).expect("it was mounted"));
            (spot + random.usize(0..40)).saturating_sub(20).clamp(first, log.len())
        }
        _ => random.usize(first..=log.len()),
    };
    let mut places: Vec<_> = (0..cuts).map(&mut place).collect();
    places.sort_unstable();
    places
}

/// What came out of one cut.
#[derive(Default)]
struct Verdict {
    wrong: Vec<String>,
    /// The writer without sync lost something.
    control_lost: bool,
    put_aside: bool,
}

/// Opens and judges an image. The daemon is started on it, too, if so wanted.
fn judge(log: &Cuts, image: &Path, at: usize, history: &History, daemon: bool) -> Verdict {
    let mut verdict = Verdict::default();
    let Some(mount) = log.mount(image) else {
        verdict.wrong.push("the file system is beyond repair".to_owned());
        return verdict;
    };
    let length = log.length_at(at);
    let control = fs::read(mount.path().join("control")).unwrap_or_default();
    let due = history.control.partition_point(|note| *note <= length);
    verdict.control_lost = control.iter().take(due).filter(|byte| **byte == 1).count() < due;
    let data = mount.path().join("data");
    match Found::open(&data) {
        Ok(found) => {
            verdict.wrong = found.judge(&history.clients, length);
            verdict.put_aside = found.put_aside;
            if daemon {
                verdict.wrong.extend(start_on(&data, &found));
            }
        }
        Err(error) => verdict.wrong.push(format!("the store does not open: {error}")),
    }
    verdict
}

/// Starts the daemon on what is left, and compares what it serves and leaves behind.
fn start_on(data: &Path, found: &Found) -> Vec<String> {
    let mut gateway = gateway_on(data);
    gateway.start();
    let mut wrong = found.compare(&gateway.list("devicestates"), &gateway.list("alerts"));
    if gateway.stop() != Some(0) {
        wrong.push("it does not stop cleanly".to_owned());
    }
    match Found::open(data) {
        Ok(after) if !after.clean => wrong.push("its clean stop is not seen".to_owned()),
        Ok(after) if found.differs(&after) => {
            wrong.push(format!("{} before the start, {} after the stop", found.sizes(), after.sizes()));
        }
        Ok(_) => {}
        Err(error) => wrong.push(format!("the store does not open after its stop: {error}")),
    }
    wrong
}
