//! Who the gateway is, outside of the store: it outlives a lost one.
//!
//! Two copies, `identity/a` and `identity/b`, each replaced whole, one after the other. A copy, little-endian:
//!
//! | at | |
//! |---|---|
//! | 0 | `TGIDEN` |
//! | 6 | version u16 (1) |
//! | 8 | generation u64: of two good copies the higher one counts |
//! | 16 | gateway id u64 |
//! | 24 | epoch u64 |
//! | 32 | reserve u64: every Seq that was ever given out is below |
//! | 40 | 1 after a clean stop, else 0; then 7 zeros |
//! | 48 | clean stop: newest lsn u64, highest seq u64, next seq u64; else zeros |
//! | 72 | CRC-32C u32 of bytes 0..72 |

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracing::warn;

use super::StoreError;
use super::codec::Reader;
use super::disk::{self, Disk};
use crate::model::{Epoch, Lsn, Seq};

/// How far the reserve is written ahead, so that it is written once in a million changes.
pub(super) const RESERVE: u64 = 1 << 20;

/// The newest format that this release reads and writes.
const VERSION: u16 = 1;

const MAGIC: &[u8; 6] = b"TGIDEN";
const CRC_AT: usize = 72;
const COPIES: [&str; 2] = ["a", "b"];

/// What a clean stop leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CleanMark {
    /// Newest frame.
    pub(super) lsn: Lsn,
    /// Highest Seq in the store.
    pub(super) seq: Seq,
    /// First Seq that was not given out.
    pub(super) next_seq: Seq,
}

/// The content of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    /// Rises with each write.
    pub(super) generation: u64,
    /// Told by chance when the directory was new.
    pub(super) gateway: u64,
    /// Life of the store and its machine.
    pub(super) epoch: Epoch,
    /// Every Seq that was given out is below.
    pub(super) reserve: Seq,
    /// There after a clean stop only.
    pub(super) clean: Option<CleanMark>,
}

impl Identity {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(CRC_AT + 4);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        for number in [self.generation, self.gateway, self.epoch.0, self.reserve.0, u64::from(self.clean.is_some())] {
            bytes.extend(number.to_le_bytes());
        }
        let mark = self.clean.map_or([0; 3], |mark| [mark.lsn.0, mark.seq.0, mark.next_seq.0]);
        for number in mark {
            bytes.extend(number.to_le_bytes());
        }
        let crc = crc32c::crc32c(&bytes);
        bytes.extend(crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Decoded {
        Self::version(bytes).map_or(Decoded::Damaged, |version| match version {
            VERSION => Self::fields(bytes).map_or(Decoded::Damaged, Decoded::Good),
            newer => Decoded::Newer(newer),
        })
    }

    /// The version of a copy whose checksum holds; a newer one may be longer, its checksum is its last four bytes.
    fn version(bytes: &[u8]) -> Option<u16> {
        let (body, crc) = bytes.split_last_chunk::<4>().filter(|(body, _)| body.len() >= CRC_AT)?;
        let mut reader = Reader(body);
        let is_ours = reader.array::<6>()? == *MAGIC && crc32c::crc32c(body) == u32::from_le_bytes(*crc);
        reader.u16().filter(|_| is_ours)
    }

    fn fields(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes.get(8..)?);
        let (generation, gateway) = (reader.u64()?, reader.u64()?);
        let (epoch, reserve) = (Epoch(reader.u64()?), Seq(reader.u64()?));
        let is_clean = reader.u64()? == 1;
        let mark = CleanMark { lsn: Lsn(reader.u64()?), seq: Seq(reader.u64()?), next_seq: Seq(reader.u64()?) };
        Some(Self { generation, gateway, epoch, reserve, clean: is_clean.then_some(mark) })
    }
}

enum Decoded {
    Good(Identity),
    Damaged,
    Newer(u16),
}

/// The two copies on disk.
pub(super) struct Copies {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
}

impl Copies {
    /// The copies in `dir`, which exists.
    pub(super) fn at(disk: Arc<dyn Disk>, dir: &Path) -> Self {
        Self { disk, dir: dir.to_owned() }
    }

    /// The newest good copy; damaged ones are told.
    pub(super) fn load(&self) -> Result<Option<Identity>, StoreError> {
        let mut newest: Option<Identity> = None;
        for name in COPIES {
            let path = self.dir.join(name);
            let bytes = match self.disk.read(&path) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    return Err(StoreError::io("read", &path)(error));
                }
                Err(error) => {
                    warn!(%error, path = %path.display(), "copy of the identity cannot be read");
                    continue;
                }
            };
            match Identity::decode(&bytes) {
                Decoded::Good(copy) if newest.is_none_or(|known| copy.generation > known.generation) => {
                    newest = Some(copy);
                }
                Decoded::Good(_) => {}
                Decoded::Damaged => warn!(path = %path.display(), "copy of the identity is damaged"),
                Decoded::Newer(version) => {
                    return Err(StoreError::NewerFormat { path, found: version.into(), known: VERSION.into() });
                }
            }
        }
        Ok(newest)
    }

    /// Writes both copies; an error of either counts, for the other one alone is no safety.
    pub(super) fn save(&self, identity: &Identity) -> Result<(), StoreError> {
        let bytes = identity.encode();
        COPIES.iter().try_for_each(|name| disk::replace(&*self.disk, &self.dir.join(name), &bytes))
    }
}

/// A number for this machine that a copied card does not carry along: the SoC's serial number, else the product's
/// UUID, else (and that one is copied) the machine id; 0 if there is none of them.
pub(super) fn machine() -> u32 {
    let sources = ["/proc/device-tree/serial-number", "/sys/class/dmi/id/product_uuid", "/etc/machine-id"];
    let told = sources.iter().find_map(|path| {
        let text = std::fs::read_to_string(path).ok()?;
        let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0').to_owned();
        (!text.is_empty()).then_some(text)
    });
    told.map_or(0, |text| crc32c::crc32c(text.as_bytes()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::*;
    use crate::store::disk::RealDisk;

    const SAMPLE: Identity = Identity {
        generation: 3,
        gateway: 0x0123_4567_89ab_cdef,
        epoch: Epoch(0x0000_0002_dead_beef),
        reserve: Seq(1_793_491_200_000_000),
        clean: Some(CleanMark { lsn: Lsn(77), seq: Seq(88), next_seq: Seq(99) }),
    };

    fn copies() -> (tempfile::TempDir, Copies) {
        let dir = tempfile::tempdir().unwrap();
        let copies = Copies::at(Arc::new(RealDisk), dir.path());
        (dir, copies)
    }

    #[test]
    fn a_copy_is_the_golden_bytes() {
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/identity-v1.bin");
        if std::env::var_os("TIDEGATE_BLESS").is_some() {
            std::fs::write(golden, SAMPLE.encode()).unwrap();
        }
        let bytes = std::fs::read(golden).unwrap();
        assert_eq!(SAMPLE.encode(), bytes, "the format of the identity has changed: raise its version");
        assert!(matches!(Identity::decode(&bytes), Decoded::Good(identity) if identity == SAMPLE));
    }

    #[test]
    fn a_directory_without_copies_has_no_identity() {
        assert_eq!(copies().1.load().unwrap(), None);
    }

    #[test]
    fn the_newer_of_two_good_copies_counts() {
        let (dir, copies) = copies();
        copies.save(&SAMPLE).unwrap();
        let newer = Identity { generation: 4, clean: None, ..SAMPLE };
        std::fs::write(dir.path().join("b"), newer.encode()).unwrap();
        assert_eq!(copies.load().unwrap(), Some(newer));
    }

    #[test]
    fn one_damaged_copy_is_made_good_by_the_other() {
        for name in COPIES {
            let (dir, copies) = copies();
            copies.save(&SAMPLE).unwrap();
            let path = dir.path().join(name);
            for at in 0..CRC_AT + 4 {
                let mut bytes = SAMPLE.encode();
                bytes[at] ^= 1;
                std::fs::write(&path, &bytes).unwrap();
                assert_eq!(copies.load().unwrap(), Some(SAMPLE), "{name} byte {at}");
            }
            std::fs::write(&path, b"").unwrap();
            assert_eq!(copies.load().unwrap(), Some(SAMPLE));
        }
    }

    #[test]
    fn a_copy_on_a_bad_sector_does_not_keep_the_daemon_from_starting() {
        for name in COPIES {
            let (dir, copies) = copies();
            copies.save(&SAMPLE).unwrap();
            std::fs::remove_file(dir.path().join(name)).unwrap();
            // Something whose reading fails.
            std::fs::create_dir(dir.path().join(name)).unwrap();
            assert_eq!(copies.load().unwrap(), Some(SAMPLE));
        }
    }

    #[test]
    fn a_newer_format_is_refused_with_the_mend() {
        let (dir, copies) = copies();
        copies.save(&SAMPLE).unwrap();
        let mut bytes = SAMPLE.encode();
        bytes.truncate(CRC_AT);
        bytes[6] = 2;
        bytes.extend(b"more than we know");
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        std::fs::write(dir.path().join("a"), &bytes).unwrap();
        let refusal = copies.load().unwrap_err();
        assert!(matches!(refusal, StoreError::NewerFormat { found: 2, known: 1, .. }), "{refusal}");
        assert!(refusal.to_string().contains("install"), "{refusal}");
    }

    #[test]
    fn the_machine_is_the_same_each_time() {
        assert_eq!(machine(), machine());
    }
}
