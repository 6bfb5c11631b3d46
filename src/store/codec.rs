//! Bytes of an effect, the same in the log and in the keyed store. Little-endian, fixed widths:
//!
//! | effect | bytes |
//! |---|---|
//! | Record | `1`, lane u8, delta u8, seq u64, epoch u64, uid epoch u64, uid seq u64, created stamp, stamp, namespace, name, body |
//! | Cursor | `2`, sink, lane u8, seq u64 |
//! | Release | `3`, sink |
//! | Trim | `4`, lane u8, to u64, lost u64 |
//! | Forget | `5`, lane u8, to u64 |
//!
//! A stamp is `unix_ms` i64 and the clock's quality u8 (1 synced, 2 corrected, 3 unsynced); a text or body is its
//! length u32 and its bytes. Lanes and deltas are the numbers in `model`.

use std::sync::Arc;

use bytes::Bytes;

use crate::model::{ClockQuality, DeltaType, Effect, Epoch, Lane, ObjectKey, Record, Seq, Stamp, Uid};

const RECORD: u8 = 1;
const CURSOR: u8 = 2;
const RELEASE: u8 = 3;
const TRIM: u8 = 4;
const FORGET: u8 = 5;

/// Appends an effect to `out`.
pub(super) fn encode(out: &mut Vec<u8>, effect: &Effect) {
    match effect {
        Effect::Record(record) => encode_record(out, record),
        Effect::Cursor { sink, lane, seq } => {
            out.push(CURSOR);
            put_bytes(out, sink.as_bytes());
            out.push(*lane as u8);
            put_u64(out, seq.0);
        }
        Effect::Release { sink } => {
            out.push(RELEASE);
            put_bytes(out, sink.as_bytes());
        }
        Effect::Trim { lane, to, lost } => {
            out.extend([TRIM, *lane as u8]);
            put_u64(out, to.0);
            put_u64(out, *lost);
        }
        Effect::Forget { lane, to } => {
            out.extend([FORGET, *lane as u8]);
            put_u64(out, to.0);
        }
    }
}

/// Bytes that [`encode`] appends.
pub(super) fn length(effect: &Effect) -> usize {
    match effect {
        Effect::Record(record) => {
            let texts = record.key.namespace().len() + record.key.name().len() + record.body.len();
            3 + 4 * 8 + 2 * 9 + 3 * 4 + texts
        }
        Effect::Cursor { sink, .. } => 1 + 4 + sink.len() + 1 + 8,
        Effect::Release { sink } => 1 + 4 + sink.len(),
        Effect::Trim { .. } => 1 + 1 + 8 + 8,
        Effect::Forget { .. } => 1 + 1 + 8,
    }
}

/// Appends a record as an effect to `out`.
pub(super) fn encode_record(out: &mut Vec<u8>, record: &Record) {
    out.extend([RECORD, record.lane as u8, record.delta as u8]);
    for number in [record.seq.0, record.epoch.0, record.uid.epoch.0, record.uid.seq.0] {
        put_u64(out, number);
    }
    for stamp in [record.created_at, record.at] {
        put_u64(out, stamp.unix_ms.cast_unsigned());
        out.push(match stamp.clock {
            ClockQuality::Synced => 1,
            ClockQuality::Corrected => 2,
            ClockQuality::Unsynced => 3,
        });
    }
    put_bytes(out, record.key.namespace().as_bytes());
    put_bytes(out, record.key.name().as_bytes());
    put_bytes(out, &record.body);
}

/// Reads effects until the bytes end; none if they are not exactly a row of effects.
pub(super) fn decode_all(bytes: &[u8]) -> Option<Vec<Effect>> {
    let mut reader = Reader(bytes);
    let mut effects = Vec::new();
    while !reader.0.is_empty() {
        effects.push(reader.effect()?);
    }
    Some(effects)
}

/// Reads one effect that fills the bytes.
pub(super) fn decode_one(bytes: &[u8]) -> Option<Effect> {
    let mut reader = Reader(bytes);
    reader.effect().filter(|_| reader.0.is_empty())
}

/// The lane with this number.
pub(super) fn lane(number: u8) -> Option<Lane> {
    Lane::ALL.into_iter().find(|lane| *lane as u8 == number)
}

/// Takes values from the front of a slice.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    /// The next `count` bytes.
    pub(super) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    /// The next bytes as an array.
    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    /// The next byte.
    pub(super) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    /// The next two bytes.
    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// The next four bytes.
    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// The next eight bytes.
    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn seq(&mut self) -> Option<Seq> {
        self.u64().map(Seq)
    }

    fn lane(&mut self) -> Option<Lane> {
        self.u8().and_then(lane)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()?;
        self.take(usize::try_from(length).ok()?)
    }

    fn text(&mut self) -> Option<Arc<str>> {
        self.bytes().and_then(|bytes| std::str::from_utf8(bytes).ok()).map(Arc::from)
    }

    fn stamp(&mut self) -> Option<Stamp> {
        let unix_ms = self.u64()?.cast_signed();
        let clock = match self.u8()? {
            1 => ClockQuality::Synced,
            2 => ClockQuality::Corrected,
            3 => ClockQuality::Unsynced,
            _ => return None,
        };
        Some(Stamp { unix_ms, clock })
    }

    fn key(&mut self) -> Option<ObjectKey> {
        let namespace = self.text().filter(|namespace| !namespace.contains('/'))?;
        Some(ObjectKey::new(namespace, self.text()?))
    }

    fn delta(&mut self) -> Option<DeltaType> {
        use DeltaType::{Added, Deleted, Replaced, Sync, Updated};
        let number = self.u8()?;
        [Added, Updated, Deleted, Replaced, Sync].into_iter().find(|delta| *delta as u8 == number)
    }

    fn record(&mut self) -> Option<Record> {
        Some(Record {
            lane: self.lane()?,
            delta: self.delta()?,
            seq: self.seq()?,
            epoch: Epoch(self.u64()?),
            uid: Uid { epoch: Epoch(self.u64()?), seq: self.seq()? },
            created_at: self.stamp()?,
            at: self.stamp()?,
            key: self.key()?,
            // A copy: a slice would keep the whole segment in RAM for as long as the record lives.
            body: Bytes::copy_from_slice(self.bytes()?),
        })
    }

    fn effect(&mut self) -> Option<Effect> {
        Some(match self.u8()? {
            RECORD => Effect::Record(self.record()?),
            CURSOR => Effect::Cursor { sink: self.text()?, lane: self.lane()?, seq: self.seq()? },
            RELEASE => Effect::Release { sink: self.text()? },
            TRIM => Effect::Trim { lane: self.lane()?, to: self.seq()?, lost: self.u64()? },
            FORGET => Effect::Forget { lane: self.lane()?, to: self.seq()? },
            _ => return None,
        })
    }
}

fn put_u64(out: &mut Vec<u8>, number: u64) {
    out.extend(number.to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    // Longer than u32 fits in no segment; the frame is refused for its size before it is written.
    out.extend(u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend(bytes);
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_lane() -> impl Strategy<Value = Lane> {
        proptest::sample::select(Lane::ALL.to_vec())
    }

    fn any_stamp() -> impl Strategy<Value = Stamp> {
        use ClockQuality::{Corrected, Synced, Unsynced};
        let quality = proptest::sample::select(vec![Synced, Corrected, Unsynced]);
        (any::<i64>(), quality).prop_map(|(unix_ms, clock)| Stamp { unix_ms, clock })
    }

    fn any_record() -> impl Strategy<Value = Record> {
        use DeltaType::{Added, Deleted, Replaced, Sync, Updated};
        let delta = proptest::sample::select(vec![Added, Updated, Deleted, Replaced, Sync]);
        let key = ("[a-z]{0,8}", any::<String>()).prop_map(|(namespace, name)| ObjectKey::new(namespace, name));
        let body = proptest::collection::vec(any::<u8>(), 0..200);
        (any_lane(), delta, any::<[u64; 4]>(), any_stamp(), any_stamp(), key, body).prop_map(
            |(lane, delta, [seq, epoch, uid_epoch, uid_seq], created_at, at, key, body)| Record {
                lane,
                delta,
                seq: Seq(seq),
                epoch: Epoch(epoch),
                key,
                uid: Uid { epoch: Epoch(uid_epoch), seq: Seq(uid_seq) },
                created_at,
                at,
                body: body.into(),
            },
        )
    }

    /// Any effect.
    pub(in crate::store) fn any_effect() -> impl Strategy<Value = Effect> {
        let sink = || any::<String>().prop_map(Arc::<str>::from);
        prop_oneof![
            any_record().prop_map(Effect::Record),
            (sink(), any_lane(), any::<u64>()).prop_map(|(sink, lane, seq)| Effect::Cursor {
                sink,
                lane,
                seq: Seq(seq)
            }),
            sink().prop_map(|sink| Effect::Release { sink }),
            (any_lane(), any::<u64>(), any::<u64>()).prop_map(|(lane, to, lost)| Effect::Trim {
                lane,
                to: Seq(to),
                lost
            }),
            (any_lane(), any::<u64>()).prop_map(|(lane, to)| Effect::Forget { lane, to: Seq(to) }),
        ]
    }

    proptest! {
        #[test]
        fn effects_are_read_back_as_they_were_written(effects in proptest::collection::vec(any_effect(), 0..5)) {
            let mut bytes = Vec::new();
            for effect in &effects {
                encode(&mut bytes, effect);
            }
            prop_assert_eq!(decode_all(&bytes), Some(effects));
        }

        #[test]
        fn an_effect_that_is_cut_short_is_no_effect(effect in any_effect(), cut in any::<proptest::sample::Index>()) {
            let mut bytes = Vec::new();
            encode(&mut bytes, &effect);
            bytes.truncate(cut.index(bytes.len()));
            prop_assert_eq!(decode_one(&bytes), None);
        }

        #[test]
        fn any_bytes_at_all_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _any_answer_is_fine = decode_all(&bytes);
        }
    }

    #[test]
    fn a_byte_too_many_is_refused() {
        let mut bytes = Vec::new();
        encode(&mut bytes, &Effect::Forget { lane: Lane::State, to: Seq(1) });
        assert!(decode_one(&bytes).is_some());
        bytes.push(0);
        assert_eq!(decode_one(&bytes), None);
    }
}
