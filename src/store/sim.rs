//! A disk and a keyed store in RAM that lose what a power cut loses: for tests of this room and of those above.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Batch, Disk, DiskFile, Keyed, KeyedError, Loaded};

/// Numbers by chance from a seed, the same each time.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// A row of its own for each seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number (SplitMix64).
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `end`, which is not zero.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }

    /// True in so many of a thousand cases.
    pub fn hits(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }
}

/// A disk with a live image, which programs see, and a durable one, which survives [`SimDisk::cut`]. Clones share it.
#[derive(Clone)]
pub struct SimDisk(Arc<Mutex<State>>);

impl SimDisk {
    /// An empty disk.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State { rng: Rng::new(seed), ..State::default() })))
    }

    /// So many of a thousand writes, syncs and changes of names fail from now on.
    pub fn fail(&self, per_mille: u64) {
        self.state().faults = per_mille;
    }

    /// From now on there is no room for new files, or there is again.
    pub fn fill(&self, full: bool) {
        self.state().full = full;
    }

    /// From now on all files together take at most so many bytes.
    pub fn limit(&self, bytes: u64) {
        self.state().limit = Some(bytes);
    }

    /// Power cut: what was synced stays; of the rest, pieces of 512 bytes or 4 KiB stay by chance, and changes of names up
    /// to some moment, as a journal keeps them.
    pub fn cut(&self) {
        self.state().cut();
    }

    /// The files in a directory.
    pub fn files(&self, dir: &Path) -> Vec<PathBuf> {
        self.state().names.keys().filter(|path| path.parent() == Some(dir)).cloned().collect()
    }

    /// Changes a file behind everybody's back, durably.
    pub fn edit(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.state();
        if let Some(inode) = state.inode_at(path).ok().and_then(|inode| state.inodes.get_mut(inode)) {
            change(&mut inode.live);
            inode.durable.clone_from(&inode.live);
            inode.dirty.clear();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change_names(&self, change: NameChange) -> io::Result<()> {
        let mut state = self.state();
        state.fault()?;
        change.apply(&mut state.names);
        state.unsynced.push(change);
        Ok(())
    }
}

impl Disk for SimDisk {
    fn create_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let name = |path: PathBuf| path.file_name().map(|name| name.to_string_lossy().into_owned());
        Ok(self.files(dir).into_iter().filter_map(name).collect())
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let state = self.state();
        let inode = state.inode_at(path)?;
        Ok(state.inodes.get(inode).map(|inode| inode.live.clone()).unwrap_or_default())
    }

    fn read_back(&self, path: &Path, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let bytes = self.read(path)?;
        let rest = bytes.get(offset as usize..).unwrap_or_default();
        Ok(rest.get(..length).unwrap_or(rest).to_vec())
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let inode = {
            let mut state = self.state();
            if state.full {
                return Err(io::ErrorKind::StorageFull.into());
            }
            state.inodes.push(Inode::default());
            state.inodes.len() - 1
        };
        self.change_names(NameChange::Link(path.to_owned(), inode))?;
        Ok(Box::new(SimFile { disk: self.clone(), inode }))
    }

    fn reserve(&self, path: &Path, bytes: u64) -> io::Result<()> {
        drop(self.create(path)?);
        let mut state = self.state();
        if state.free() < bytes {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let inode = state.inode_at(path)?;
        state.inodes.get_mut(inode).into_iter().for_each(|inode| inode.live.resize(bytes as usize, 0));
        Ok(())
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let inode = self.state().inode_at(path)?;
        Ok(Box::new(SimFile { disk: self.clone(), inode }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.state().inode_at(from)?;
        self.change_names(NameChange::Rename(from.to_owned(), to.to_owned()))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.state().inode_at(path)?;
        self.change_names(NameChange::Unlink(path.to_owned()))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.fault()?;
        let (synced, rest) = std::mem::take(&mut state.unsynced).into_iter().partition(|change| change.is_in(dir));
        state.unsynced = rest;
        let synced: Vec<NameChange> = synced;
        for change in synced {
            change.apply(&mut state.durable_names);
        }
        Ok(())
    }

    fn free_space(&self, _path: &Path) -> io::Result<u64> {
        Ok(self.state().free())
    }
}

#[derive(Default)]
struct State {
    rng: Rng,
    inodes: Vec<Inode>,
    names: BTreeMap<PathBuf, usize>,
    durable_names: BTreeMap<PathBuf, usize>,
    unsynced: Vec<NameChange>,
    faults: u64,
    full: bool,
    limit: Option<u64>,
}

impl State {
    fn free(&self) -> u64 {
        let Some(limit) = self.limit else { return u64::MAX };
        let used = self.names.values().filter_map(|inode| self.inodes.get(*inode)).map(|inode| inode.live.len() as u64);
        limit.saturating_sub(used.sum())
    }

    fn fault(&mut self) -> io::Result<()> {
        let faults = self.faults;
        if self.rng.hits(faults) { Err(io::Error::other("injected")) } else { Ok(()) }
    }

    fn inode_at(&self, path: &Path) -> io::Result<usize> {
        self.names.get(path).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn cut(&mut self) {
        let Self { rng, inodes, names, durable_names, unsynced, .. } = self;
        let piece = if rng.hits(500) { 512 } else { 4096 };
        for inode in inodes {
            inode.cut(rng, piece);
        }
        let until = rng.below(unsynced.len() as u64 + 1) as usize;
        unsynced.drain(..).take(until).for_each(|change| change.apply(durable_names));
        names.clone_from(durable_names);
    }
}

impl Default for Rng {
    fn default() -> Self {
        Self::new(0)
    }
}

/// Sectors of 512 bytes are the least that is written whole.
const SECTOR: usize = 512;

#[derive(Default)]
struct Inode {
    live: Vec<u8>,
    durable: Vec<u8>,
    /// Sectors that differ and may still be synced.
    dirty: BTreeSet<usize>,
}

impl Inode {
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if self.live.len() < end {
            self.live.resize(end, 0);
        }
        if let Some(place) = self.live.get_mut(offset..end) {
            place.copy_from_slice(bytes);
        }
        self.dirty.extend(offset / SECTOR..end.div_ceil(SECTOR));
    }

    fn keep(&mut self, sector: usize) {
        let end = self.live.len().min((sector + 1) * SECTOR);
        if self.durable.len() < end {
            self.durable.resize(end, 0);
        }
        if let (Some(to), Some(from)) =
            (self.durable.get_mut(sector * SECTOR..end), self.live.get(sector * SECTOR..end))
        {
            to.copy_from_slice(from);
        }
    }

    fn sync(&mut self) {
        for sector in std::mem::take(&mut self.dirty) {
            self.keep(sector);
        }
    }

    /// As Linux does: the pages count as clean, may or may not be on disk, and will not be written again.
    fn sync_in_vain(&mut self, rng: &mut Rng) {
        std::mem::take(&mut self.dirty).into_iter().filter(|_| rng.hits(300)).for_each(|sector| self.keep(sector));
    }

    fn cut(&mut self, rng: &mut Rng, piece: usize) {
        let kept: BTreeSet<usize> =
            self.dirty.iter().map(|sector| sector * SECTOR / piece).filter(|_| rng.hits(500)).collect();
        let dirty = std::mem::take(&mut self.dirty);
        dirty
            .into_iter()
            .filter(|sector| kept.contains(&(sector * SECTOR / piece)))
            .for_each(|sector| self.keep(sector));
        self.live.clone_from(&self.durable);
    }
}

enum NameChange {
    Link(PathBuf, usize),
    Rename(PathBuf, PathBuf),
    Unlink(PathBuf),
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<PathBuf, usize>) {
        match self {
            Self::Link(path, inode) => drop(names.insert(path.clone(), *inode)),
            Self::Rename(from, to) => {
                if let Some(inode) = names.remove(from) {
                    names.insert(to.clone(), inode);
                }
            }
            Self::Unlink(path) => drop(names.remove(path)),
        }
    }

    fn is_in(&self, dir: &Path) -> bool {
        let (Self::Link(path, _) | Self::Rename(path, _) | Self::Unlink(path)) = self;
        path.parent() == Some(dir)
    }
}

struct SimFile {
    disk: SimDisk,
    inode: usize,
}

impl SimFile {
    fn with<T>(&self, act: impl FnOnce(&mut Inode, &mut Rng, bool) -> T) -> io::Result<T> {
        let mut state = self.disk.state();
        let failed = state.fault().is_err();
        let State { inodes, rng, .. } = &mut *state;
        inodes.get_mut(self.inode).map(|inode| act(inode, rng, failed)).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl DiskFile for SimFile {
    fn pwrite(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let growth = (offset + bytes.len() as u64).saturating_sub(self.length()?);
        if growth > 0 && self.disk.state().free() < growth {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.with(|inode, rng, failed| {
            let length = if failed { rng.below(bytes.len() as u64 + 1) as usize } else { bytes.len() };
            inode.write(offset as usize, bytes.get(..length).unwrap_or(bytes));
            if failed { Err(io::Error::other("injected")) } else { Ok(()) }
        })?
    }

    fn fdatasync(&mut self) -> io::Result<()> {
        self.with(|inode, rng, failed| {
            if failed {
                inode.sync_in_vain(rng);
                return Err(io::Error::other("injected"));
            }
            inode.sync();
            Ok(())
        })?
    }

    fn length(&self) -> io::Result<u64> {
        let state = self.disk.state();
        Ok(state.inodes.get(self.inode).map_or(0, |inode| inode.live.len() as u64))
    }
}

/// A keyed store in RAM. A batch is durable when it is applied; one that fails is applied or not, by chance. Clones
/// share it.
#[derive(Clone)]
pub struct RamKeyed(Arc<Mutex<RamState>>);

#[derive(Default)]
struct RamState {
    rng: Rng,
    faults: u64,
    entries: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl RamKeyed {
    /// An empty store.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(RamState { rng: Rng::new(seed), ..RamState::default() })))
    }

    /// So many of a thousand batches fail from now on.
    pub fn fail(&self, per_mille: u64) {
        self.state().faults = per_mille;
    }

    /// Everything is gone.
    pub fn lose(&self) {
        self.state().entries.clear();
    }

    /// The keys that are there.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        self.state().entries.keys().cloned().collect()
    }

    /// Changes what is there behind everybody's back.
    pub fn edit(&self, change: impl FnOnce(&mut BTreeMap<Vec<u8>, Vec<u8>>)) {
        change(&mut self.state().entries);
    }

    fn state(&self) -> MutexGuard<'_, RamState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Keyed for RamKeyed {
    fn load(&mut self) -> Result<Loaded, KeyedError> {
        Ok(Loaded { entries: self.state().entries.clone().into_iter().collect(), damages: 0 })
    }

    fn apply(&mut self, batch: &Batch) -> Result<(), KeyedError> {
        let mut state = self.state();
        let RamState { rng, faults, entries } = &mut *state;
        let failed = rng.hits(*faults);
        if failed && rng.hits(500) {
            return Err("injected, not applied".into());
        }
        entries.retain(|key, _| !batch.cleared.iter().any(|(from, to)| (from..to).contains(&key)));
        for (key, value) in &batch.entries {
            match value {
                Some(value) => drop(entries.insert(key.clone(), value.clone())),
                None => drop(entries.remove(key)),
            }
        }
        if failed { Err("injected, applied".into()) } else { Ok(()) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may panic")]
mod tests {
    use super::*;

    #[test]
    fn a_power_cut_keeps_what_was_synced_and_may_lose_the_rest() {
        let (path, dir) = (Path::new("d/f"), Path::new("d"));
        let mut lost = 0;
        for seed in 0..50 {
            let disk = SimDisk::new(seed);
            let mut file = disk.create(path).unwrap();
            file.pwrite(0, &[1; SECTOR]).unwrap();
            file.fdatasync().unwrap();
            disk.sync_dir(dir).unwrap();
            file.pwrite(SECTOR as u64, &[2; SECTOR]).unwrap();
            disk.cut();
            let content = disk.read(path).unwrap();
            assert!(content.starts_with(&[1; SECTOR]));
            lost += usize::from(content.len() == SECTOR);
        }
        assert!((10..40).contains(&lost), "{lost}");
    }

    #[test]
    fn a_name_that_was_not_synced_may_be_lost() {
        let lost = (0..50).filter(|seed| {
            let disk = SimDisk::new(*seed);
            disk.create(Path::new("d/f")).unwrap();
            disk.cut();
            disk.read(Path::new("d/f")).is_err()
        });
        assert!((10..40).contains(&lost.count()));
    }

    #[test]
    fn a_sync_that_follows_a_failed_one_saves_nothing() {
        let disk = SimDisk::new(3);
        let mut file = disk.create(Path::new("d/f")).unwrap();
        disk.sync_dir(Path::new("d")).unwrap();
        file.pwrite(0, &[1; 20 * SECTOR]).unwrap();
        disk.fail(1000);
        file.fdatasync().unwrap_err();
        disk.fail(0);
        file.fdatasync().unwrap();
        disk.cut();
        assert_ne!(disk.read(Path::new("d/f")).unwrap(), [1; 20 * SECTOR]);
    }
}
