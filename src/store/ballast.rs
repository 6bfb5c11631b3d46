//! `store/ballast`: space that is given up when the disk is full, so that what makes room has room itself.
//!
//! It is taken while twice its size is free, and given up before sled is opened on a disk that is tight, for sled
//! needs space to open, and after a commit that found no space. It is taken again when there is room.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

use tracing::{info, warn};

use super::disk::Disk;

/// The file, or the wish for it.
pub(super) struct Ballast {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    bytes: u64,
    is_there: bool,
}

impl Ballast {
    /// Finds it, or takes it if there is room.
    pub(super) fn new(disk: Arc<dyn Disk>, path: PathBuf, bytes: u64) -> Self {
        let is_there = disk.open(&path).and_then(|file| file.length()).is_ok_and(|length| length == bytes);
        let mut ballast = Self { disk, path, bytes, is_there };
        ballast.restore();
        ballast
    }

    /// False if it was given up, or there was no room for it.
    pub(super) fn is_there(&self) -> bool {
        self.is_there
    }

    /// Gives the space up. False if there was none to give.
    pub(super) fn give_up(&mut self) -> bool {
        let was_there = std::mem::take(&mut self.is_there);
        match self.disk.remove(&self.path) {
            Ok(()) => {
                warn!(bytes = self.bytes, "the disk is full; the ballast is given up");
                was_there
            }
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => {
                warn!(%error, "ballast not given up");
                self.is_there = was_there;
                false
            }
        }
    }

    /// Gives the space up if the disk is tight.
    pub(super) fn give_way(&mut self) {
        if self.free().is_some_and(|free| free < self.bytes) {
            self.give_up();
        }
    }

    /// Takes the space again, unless the disk is still tight: then the log and the identity need it more.
    pub(super) fn restore(&mut self) {
        if self.is_there || self.free().is_none_or(|free| free < 2 * self.bytes) {
            return;
        }
        match self.disk.reserve(&self.path, self.bytes) {
            Ok(()) => {
                self.is_there = true;
                info!(bytes = self.bytes, "the ballast is in place");
            }
            Err(error) => {
                warn!(%error, "no space for the ballast");
                drop(self.disk.remove(&self.path));
            }
        }
    }

    fn free(&self) -> Option<u64> {
        self.disk.free_space(&self.path.with_file_name("")).ok()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may panic")]
mod tests {
    use super::*;
    use crate::store::disk::RealDisk;
    use crate::store::sim::SimDisk;

    const BYTES: u64 = 1 << 10;

    fn ballast(disk: &SimDisk) -> Ballast {
        Ballast::new(Arc::new(disk.clone()), PathBuf::from("store/ballast"), BYTES)
    }

    #[test]
    fn it_is_taken_while_twice_its_size_is_free() {
        let disk = SimDisk::new(1);
        disk.limit(2 * BYTES - 1);
        let mut ballast = ballast(&disk);
        assert!(!ballast.is_there && !ballast.give_up());
        disk.limit(2 * BYTES);
        ballast.restore();
        assert_eq!(disk.free_space(&ballast.path).unwrap(), BYTES);
    }

    #[test]
    fn it_gives_way_on_a_tight_disk_and_comes_back() {
        let disk = SimDisk::new(1);
        disk.limit(10 * BYTES);
        let mut ballast = ballast(&disk);
        ballast.give_way();
        assert!(ballast.is_there, "there is room enough");
        disk.limit(BYTES + 10);
        ballast.give_way();
        ballast.restore();
        assert!(!ballast.is_there);
        disk.limit(10 * BYTES);
        ballast.restore();
        assert!(ballast.is_there && ballast.give_up());
        assert!(!ballast.give_up(), "it can be given up once");
    }

    #[test]
    fn a_real_one_takes_its_space_and_is_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ballast");
        let open = || Ballast::new(Arc::new(RealDisk), path.clone(), BYTES);
        assert!(open().is_there && open().is_there);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), BYTES);
        assert!(open().give_up());
        assert!(!path.exists());
    }
}
