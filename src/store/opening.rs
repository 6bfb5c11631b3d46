//! What an open finds: which image is in force, and what identity and store say of each other.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use tracing::{error, warn};

use super::disk::Disk;
use super::identity::{Identity, RESERVE};
use super::keyed::{self, Floor, Image, Keyed, Loaded};
use super::log::{self, Replay};
use super::snapshot::{self, Found};
use super::{Gap, Recovered, StoreError, StoreOptions};
use crate::model::{Epoch, Lane, Lsn, Seq};
use crate::runtime::clock::{Clock, is_plausible};

/// The image that the log goes on from.
pub(super) struct Base {
    pub(super) image: Image,
    /// The position of the snapshot, if it is whole.
    pub(super) snapshot: Option<Lsn>,
}

impl Base {
    /// Reads keyed store and snapshot. The whole one counts, of two whole ones the newer; if none is whole and the log goes
    /// back to its beginning, that is enough. A keyed store that does not count is built anew from what does.
    pub(super) fn read(
        keyed: &mut dyn Keyed,
        disk: &Arc<dyn Disk>,
        log_dir: &Path,
        snapshot_path: &Path,
    ) -> Result<Self, StoreError> {
        let first = keyed.load().map_err(StoreError::keyed("open"))?;
        let first = known_format(Image::read(&first), &snapshot_path.with_file_name("sled"))?;
        let (mut second, mut loaded) = snapshot_image(&**disk, snapshot_path)?;
        let snapshot = second.as_ref().filter(|image| image.damages == 0).map(|image| image.checkpoint.lsn);
        let is_whole = |image: &Image| image.damages == 0 && image.format.is_some();
        if !is_whole(&first) && snapshot.is_none() && log::reaches_back(disk, log_dir)? {
            (second, loaded) = (Some(Image { format: Some(keyed::FORMAT), ..Image::default() }), Loaded::default());
        }
        let worth = |image: &Image| (is_whole(image), image.checkpoint.lsn);
        let Some(second) = second.filter(|second| worth(second) > worth(&first)) else {
            if first.format.is_none() {
                keyed.apply(&keyed::format_batch()).map_err(StoreError::keyed("write"))?;
            }
            return Ok(Self { image: first, snapshot });
        };
        warn!(
            damages = first.damages,
            from = %first.checkpoint.lsn,
            to = %second.checkpoint.lsn,
            entries = loaded.entries.len(),
            "the keyed store is damaged, lost or older than it was; it is built anew from the snapshot or the log"
        );
        keyed.apply(&keyed::rebuild_batch(&loaded)).map_err(StoreError::keyed("rebuild"))?;
        Ok(Self { image: second, snapshot })
    }
}

/// What can be read of the snapshot, if there is one.
fn snapshot_image(disk: &dyn Disk, path: &Path) -> Result<(Option<Image>, Loaded), StoreError> {
    match snapshot::read(disk, path)? {
        Found::Nothing => Ok((None, Loaded::default())),
        Found::Damaged => {
            error!("the snapshot is damaged; it is written anew");
            Ok((None, Loaded::default()))
        }
        Found::Snapshot { at, loaded } => {
            let image = known_format(Image { checkpoint: at, ..Image::read(&loaded) }, path)?;
            if image.damages > 0 {
                error!(damages = image.damages, "the snapshot is damaged; it is written anew");
            }
            // Where there is a snapshot, there was a store.
            Ok((Some(Image { format: image.format.or(Some(keyed::FORMAT)), ..image }), loaded))
        }
    }
}

fn known_format(image: Image, path: &Path) -> Result<Image, StoreError> {
    match image.format {
        Some(found) if found > keyed::FORMAT => {
            Err(StoreError::NewerFormat { path: path.to_owned(), found: found.into(), known: keyed::FORMAT.into() })
        }
        Some(_) | None => Ok(image),
    }
}

/// What identity and store say of each other.
pub(super) struct Findings {
    known: Option<Identity>,
    machine: u32,
    /// Highest Seq in the store.
    last_seq: Seq,
    /// Highest counter of an epoch in the store.
    counter: u32,
    pub(super) clean: bool,
    /// Why this is a new life, if it is.
    pub(super) new_epoch: Option<&'static str>,
    /// Frames are missing at the end, and nobody knows how many.
    pub(super) open_end: bool,
}

impl Findings {
    pub(super) fn new(known: Option<Identity>, image: &Image, replay: &Replay, stopped: bool, machine: u32) -> Self {
        let is_empty = replay.last == Lsn::ZERO && image.damages == 0;
        let has_mark = known.is_some_and(|identity| identity.clean.is_some());
        let is_rebuilt = image.format.is_none() && !(stopped && is_empty);
        let reaches_back = replay.found && replay.gaps.is_empty() && !replay.open_end;
        let new_epoch = match known {
            None if is_empty => None,
            None => Some("both copies of the identity are lost"),
            Some(identity) if identity.epoch != Epoch::new(identity.epoch.counter(), machine) => {
                Some("this is another machine")
            }
            Some(_) if has_mark && !stopped => Some("the store is not the one that was stopped"),
            Some(identity) if replay.last_seq >= identity.reserve => Some("the identity is older than the store"),
            Some(_) if replay.begins_late => Some("the keyed store lost what it had"),
            Some(_) if is_rebuilt && !reaches_back => Some("the store is lost"),
            Some(_) => None,
        };
        let seen = image.newest.iter().chain(&image.lanes).map(|record| record.epoch.counter()).max();
        Self {
            known,
            machine,
            last_seq: replay.last_seq,
            counter: seen.unwrap_or_default(),
            clean: stopped && new_epoch.is_none(),
            new_epoch,
            open_end: !stopped && (replay.open_end || (known.is_some() && !replay.found)),
        }
    }

    /// The identity of this life: its reserve is [`RESERVE`] above the first Seq that may be given out.
    pub(super) fn identity(&self, options: &StoreOptions, clock: &dyn Clock) -> Identity {
        let known = self.known;
        let counter = known.map_or(0, |identity| identity.epoch.counter()).max(self.counter);
        let counter = if self.new_epoch.is_some() { counter + 1 } else { counter.max(1) };
        if let Some(reason) = self.new_epoch {
            error!(reason, counter, "a new epoch begins");
        }
        let wall = clock.wall();
        let micros = if is_plausible(wall) { wall.unix_ms.unsigned_abs().saturating_mul(1000) } else { 0 };
        let mark = known.and_then(|identity| identity.clean).filter(|_| self.clean);
        let free = mark.map(|mark| mark.next_seq).or(known.map(|identity| identity.reserve)).unwrap_or_default();
        let next = free.0.max(self.last_seq.0.saturating_add(1)).max(micros);
        Identity {
            generation: known.map_or(1, |identity| identity.generation + 1),
            gateway: known.map_or_else(|| gateway_id(options, clock), |identity| identity.gateway),
            epoch: Epoch::new(counter, self.machine),
            reserve: Seq(next.saturating_add(RESERVE)),
            clean: None,
        }
    }
}

/// A number that two gateways hardly share.
fn gateway_id(options: &StoreOptions, clock: &dyn Clock) -> u64 {
    let ticks = clock.ticks();
    let words = [clock.wall().unix_ms as u64, ticks.as_nanos() as u64, u64::from(std::process::id())];
    let half = |seed: &[u8]| {
        let seed = crc32c::crc32c_append(crc32c::crc32c(seed), options.gateway.as_bytes());
        words.iter().fold(seed, |crc, word| crc32c::crc32c_append(crc, &word.to_le_bytes()))
    };
    u64::from(half(b"high")) << 32 | u64::from(half(b"low"))
}

/// `lost_until` is the first Seq of this life, if the log's end is lost.
pub(super) fn recovered(image: Image, replay: Replay, lost_until: Option<Seq>) -> Recovered {
    let mut gaps = replay.gaps;
    if image.damages > 0 {
        error!(damages = image.damages, "entries of the keyed store are lost");
        gaps.insert(0, Gap { from: Seq::ZERO, to: image.checkpoint.seq });
    }
    if let Some(next_seq) = lost_until {
        let gap = Gap { from: replay.last_seq, to: Seq(next_seq.0.saturating_sub(1)) };
        error!(from = %gap.from, to = %gap.to, "the end of the log is lost");
        gaps.push(gap);
    }
    gaps.retain(|gap| gap.to > gap.from);
    let floor = |(lane, floor): (Lane, Floor)| (lane, floor.trimmed, floor.forgotten);
    let floors: BTreeMap<Lane, Floor> = image.floors;
    Recovered {
        image: image.newest,
        lane_records: image.lanes,
        cursors: image.cursors,
        floors: floors.into_iter().map(floor).collect(),
        tail: replay.frames.into_iter().flat_map(|frame| frame.effects).collect(),
        gaps,
        ..Recovered::default()
    }
}
