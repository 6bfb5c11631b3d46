//! Bytes of segment headers and frames; see the table in the head of `log`.

use std::ops::Range;

use crate::model::{Frame, Lsn, Seq};
use crate::store::codec::{self, Reader};

/// Bytes of a segment before its first frame.
pub(in crate::store) const HEADER_BYTES: usize = 64;

/// Bytes of a frame before its effects.
pub(in crate::store) const HEAD_BYTES: usize = 40;

/// The newest segment format that this release reads and writes.
pub(in crate::store) const VERSION: u16 = 1;

const MAGIC: &[u8; 5] = b"TGLOG";
const HEADER_CRC_AT: usize = HEADER_BYTES - 4;

/// What a segment says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) version: u16,
    pub(super) id: u64,
    pub(super) bases: Bases,
    pub(super) segment_bytes: u32,
}

/// What was true of older segments when a segment was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Bases {
    /// Their frames above this one are void: never committed, or written again from here on.
    pub(super) void_above: Lsn,
    /// Their frames up to and including this one were synced; if one is missing, it is lost.
    pub(super) synced: Lsn,
}

impl Header {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend(MAGIC);
        bytes.push(0);
        bytes.extend(self.version.to_le_bytes());
        bytes.extend(self.id.to_le_bytes());
        bytes.extend(self.bases.void_above.0.to_le_bytes());
        bytes.extend(self.bases.synced.0.to_le_bytes());
        bytes.extend(self.segment_bytes.to_le_bytes());
        bytes.resize(HEADER_CRC_AT, 0);
        let crc = crc32c::crc32c(&bytes);
        bytes.extend(crc.to_le_bytes());
        bytes
    }

    /// None if the bytes are no header, or one that is damaged. The version may be newer than ours.
    pub(super) fn decode(segment: &[u8]) -> Option<Self> {
        let (body, crc) = segment.get(..HEADER_BYTES)?.split_at_checked(HEADER_CRC_AT)?;
        if Reader(crc).u32()? != crc32c::crc32c(body) {
            return None;
        }
        let mut reader = Reader(body);
        if reader.array::<5>()? != *MAGIC {
            return None;
        }
        reader.u8()?;
        Some(Self {
            version: reader.u16()?,
            id: reader.u64()?,
            bases: Bases { void_above: Lsn(reader.u64()?), synced: Lsn(reader.u64()?) },
            segment_bytes: reader.u32()?,
        })
    }
}

/// Where a frame stands among its neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) segment: u64,
    pub(super) offset: usize,
    /// The frame before it.
    pub(super) prev_lsn: Lsn,
    /// The newest frame before the write that this frame was part of.
    pub(super) base: Lsn,
}

/// Bytes that a frame takes in a segment.
pub(super) fn length(frame: &Frame) -> usize {
    HEAD_BYTES + frame.effects.iter().map(codec::length).sum::<usize>()
}

/// Appends a frame to `out`, and returns its length in bytes.
pub(super) fn encode(out: &mut Vec<u8>, frame: &Frame, place: Place) -> usize {
    let start = out.len();
    out.extend([0; 8]);
    for number in [frame.lsn.0, place.prev_lsn.0, place.base.0, frame.prev_seq.0] {
        out.extend(number.to_le_bytes());
    }
    frame.effects.iter().for_each(|effect| codec::encode(out, effect));
    let length = out.len() - start;
    let wire_length = u32::try_from(length).unwrap_or(u32::MAX);
    let crc = checksum(place.segment, place.offset, wire_length, out.get(start + 8..).unwrap_or_default());
    for (at, word) in [(start, wire_length), (start + 4, crc)] {
        if let Some(place) = out.get_mut(at..at + 4) {
            place.copy_from_slice(&word.to_le_bytes());
        }
    }
    length
}

/// A frame's head before its checksum is proved: good for a quick look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) length: usize,
    pub(super) lsn: Lsn,
    pub(super) prev_lsn: Lsn,
    pub(super) base: Lsn,
    pub(super) prev_seq: Seq,
    crc: u32,
}

impl Head {
    /// The head at `offset`, if it may be one: it fits into the segment and its positions are in order.
    pub(super) fn peek(segment: &[u8], offset: usize) -> Option<Self> {
        let rest = segment.get(offset..)?;
        let length = u32::from_le_bytes(*rest.first_chunk()?) as usize;
        if length < HEAD_BYTES || length > rest.len() {
            return None;
        }
        let mut reader = Reader(rest.get(4..)?);
        let crc = reader.u32()?;
        let lsn = Lsn(reader.u64()?);
        let prev_lsn = Lsn(reader.u64()?);
        let base = Lsn(reader.u64()?);
        let prev_seq = Seq(reader.u64()?);
        (base <= prev_lsn && prev_lsn < lsn).then_some(Self { length, lsn, prev_lsn, base, prev_seq, crc })
    }

    /// True if the checksum holds.
    pub(super) fn is_proved(&self, segment: &[u8], id: u64, offset: usize) -> bool {
        let body = segment.get(offset + 8..offset + self.length).unwrap_or_default();
        checksum(id, offset, self.length as u32, body) == self.crc
    }

    /// Where the effects lie in the segment.
    pub(super) fn effects(&self, offset: usize) -> Range<usize> {
        offset + HEAD_BYTES..offset + self.length
    }
}

/// CRC-32C over segment id, offset in the segment, length and all that follows the checksum: bytes of another segment
/// or another place never pass.
fn checksum(id: u64, offset: usize, length: u32, body: &[u8]) -> u32 {
    let seed = crc32c::crc32c(&id.to_le_bytes());
    let seed = crc32c::crc32c_append(seed, &(offset as u64).to_le_bytes());
    let seed = crc32c::crc32c_append(seed, &length.to_le_bytes());
    crc32c::crc32c_append(seed, body)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::{ClockQuality, DeltaType, Effect, Epoch, Lane, ObjectKey, Record, Stamp, Uid};
    use crate::store::codec::tests::any_effect;

    const PLACE: Place = Place { segment: 7, offset: HEADER_BYTES, prev_lsn: Lsn(4), base: Lsn(3) };
    const BASES: Bases = Bases { void_above: Lsn(3), synced: Lsn(2) };

    fn sample() -> Frame {
        let epoch = Epoch::new(2, 0xdead_beef);
        let record = Record {
            lane: Lane::State,
            delta: DeltaType::Added,
            seq: Seq(1_793_491_200_000_001),
            epoch,
            key: ObjectKey::new("default", "hall/door 4"),
            uid: Uid { epoch, seq: Seq(1_793_491_200_000_000) },
            created_at: Stamp { unix_ms: 1_793_491_200_000, clock: ClockQuality::Synced },
            at: Stamp { unix_ms: -1, clock: ClockQuality::Unsynced },
            body: br#"{"device":"hall/door 4"}"#.as_slice().into(),
        };
        let effects = vec![
            Effect::Record(record),
            Effect::Cursor { sink: "kafka".into(), lane: Lane::Alert, seq: Seq(9) },
            Effect::Release { sink: "old".into() },
            Effect::Trim { lane: Lane::Event, to: Seq(8), lost: 3 },
            Effect::Forget { lane: Lane::State, to: Seq(7) },
        ];
        Frame { lsn: Lsn(5), prev_seq: Seq(1_793_491_199_999_999), effects }
    }

    #[test]
    fn header_and_frame_are_the_golden_bytes() {
        let mut bytes = Header { version: 1, id: 7, bases: BASES, segment_bytes: 4 << 20 }.encode();
        encode(&mut bytes, &sample(), PLACE);
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/log-segment-v1.bin");
        if std::env::var_os("TIDEGATE_BLESS").is_some() {
            std::fs::write(golden, &bytes).unwrap();
        }
        assert_eq!(bytes, std::fs::read(golden).unwrap(), "the format of the log has changed: raise its version");
        assert_eq!(Header::decode(&bytes).unwrap().bases, BASES);
        let head = Head::peek(&bytes, HEADER_BYTES).unwrap();
        assert!(head.is_proved(&bytes, 7, HEADER_BYTES));
        assert_eq!(codec::decode_all(&bytes[head.effects(HEADER_BYTES)]), Some(sample().effects));
    }

    #[test]
    fn a_flipped_bit_anywhere_is_seen() {
        let mut segment = vec![0; HEADER_BYTES];
        let length = encode(&mut segment, &sample(), PLACE);
        for at in HEADER_BYTES..HEADER_BYTES + length {
            segment[at] ^= 0x10;
            let head = Head::peek(&segment, HEADER_BYTES);
            assert!(!head.is_some_and(|head| head.is_proved(&segment, 7, HEADER_BYTES)), "byte {at}");
            segment[at] ^= 0x10;
        }
    }

    #[test]
    fn a_frame_of_another_segment_or_place_is_none() {
        let mut segment = vec![0; HEADER_BYTES];
        encode(&mut segment, &sample(), PLACE);
        let head = Head::peek(&segment, HEADER_BYTES).unwrap();
        assert!(head.is_proved(&segment, 7, HEADER_BYTES));
        assert!(!head.is_proved(&segment, 8, HEADER_BYTES));
        segment.insert(0, 0);
        assert!(!head.is_proved(&segment, 7, HEADER_BYTES + 1));
    }

    #[test]
    fn a_damaged_header_is_none() {
        let header = Header { version: 1, id: 7, bases: BASES, segment_bytes: 4096 };
        let bytes = header.encode();
        assert_eq!(Header::decode(&bytes), Some(header));
        for at in 0..HEADER_BYTES {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(Header::decode(&damaged), None, "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn a_frame_is_read_back_as_it_was_written(
            effects in proptest::collection::vec(any_effect(), 0..4),
            lsn in 1..u64::MAX,
            prev_seq: u64,
        ) {
            let frame = Frame { lsn: Lsn(lsn), prev_seq: Seq(prev_seq), effects };
            let mut segment = vec![0; HEADER_BYTES];
            let place = Place { prev_lsn: Lsn(lsn - 1), base: Lsn(0), ..PLACE };
            let written = encode(&mut segment, &frame, place);
            prop_assert_eq!(written, length(&frame));
            let head = Head::peek(&segment, HEADER_BYTES).unwrap();
            prop_assert!(head.is_proved(&segment, 7, HEADER_BYTES));
            prop_assert_eq!((head.length, head.lsn, head.prev_seq), (written, frame.lsn, frame.prev_seq));
            prop_assert_eq!(codec::decode_all(&segment[head.effects(HEADER_BYTES)]), Some(frame.effects));
        }
    }
}
