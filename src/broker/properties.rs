//! MQTT 5 properties, checked on the raw bytes: which may be where, how often, and with which values.
//!
//! rumqttd's codec takes duplicates, reads strings beyond the end of the property block and knows no bad values.

use super::cause::Cause;
use super::frame::Reader;
use super::topic::is_name;

/// Whose properties they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// CONNECT itself.
    Connect,
    /// The will in a CONNECT.
    Will,
    /// PUBLISH.
    Publish,
    /// PUBACK.
    Ack,
    /// SUBSCRIBE.
    Subscribe,
    /// UNSUBSCRIBE.
    Unsubscribe,
    /// DISCONNECT.
    Disconnect,
}

/// Property identifiers that a room file asks for by name.
pub(super) mod id {
    pub(in super::super) const RESPONSE_TOPIC: u8 = 8;
    pub(in super::super) const SUBSCRIPTION_IDENTIFIER: u8 = 11;
    pub(in super::super) const SESSION_EXPIRY_INTERVAL: u8 = 17;
    pub(in super::super) const AUTHENTICATION_METHOD: u8 = 21;
    pub(in super::super) const AUTHENTICATION_DATA: u8 = 22;
    pub(in super::super) const USER_PROPERTY: u8 = 38;
    pub(in super::super) const TOPIC_ALIAS: u8 = 35;
    pub(in super::super) const RECEIVE_MAXIMUM: u8 = 33;
    pub(in super::super) const MAXIMUM_PACKET_SIZE: u8 = 39;
}

/// What a property block held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Seen {
    ids: u64,
    /// Session Expiry Interval in seconds; 0 if absent.
    pub(super) session_expiry: u32,
}

impl Seen {
    /// True if the property was there.
    pub(super) fn has(self, id: u8) -> bool {
        self.ids & bit(id) != 0
    }
}

/// Checks the property block that `reader` stands at, its length included, and leaves `reader` behind it.
pub(super) fn check(owner: Owner, reader: &mut Reader<'_>) -> Result<Seen, Cause> {
    let len = reader.varint()?;
    let mut block = Reader::new(reader.take(len)?);
    let mut seen = Seen::default();
    while !block.is_empty() {
        // Identifiers are variable byte integers, but all that exist are one byte.
        let id = u8::try_from(block.varint()?).map_err(|_| Cause::Malformed)?;
        let value = check_value(id, &mut block)?;
        if !may_hold(owner, id) {
            // MQTT 5, 2.2.2.2 and 3.3.4.
            let is_from_server = owner == Owner::Publish && id == id::SUBSCRIPTION_IDENTIFIER;
            return Err(if is_from_server { Cause::Protocol } else { Cause::Malformed });
        }
        if seen.has(id) && id != id::USER_PROPERTY {
            return Err(Cause::Protocol);
        }
        seen.ids |= bit(id);
        if id == id::SESSION_EXPIRY_INTERVAL {
            seen.session_expiry = value;
        }
    }
    if seen.has(id::AUTHENTICATION_DATA) && !seen.has(id::AUTHENTICATION_METHOD) {
        return Err(Cause::Protocol);
    }
    Ok(seen)
}

fn bit(id: u8) -> u64 {
    1_u64.checked_shl(u32::from(id)).unwrap_or(0)
}

/// What a client may send; most properties that are not here come from servers only.
fn may_hold(owner: Owner, id: u8) -> bool {
    let allowed: &[u8] = match owner {
        Owner::Connect => &[17, 21, 22, 23, 25, 33, 34, 38, 39],
        Owner::Will => &[1, 2, 3, 8, 9, 24, 38],
        Owner::Publish => &[1, 2, 3, 8, 9, 35, 38],
        Owner::Ack => &[31, 38],
        Owner::Subscribe => &[11, 38],
        Owner::Unsubscribe => &[38],
        Owner::Disconnect => &[17, 31, 38],
    };
    allowed.contains(&id)
}

/// Reads one value of any property that exists; numbers are returned, anything else is 0.
fn check_value(id: u8, block: &mut Reader<'_>) -> Result<u32, Cause> {
    match id {
        1 | 23 | 25 | 36 | 37 | 40..=42 => match block.u8()? {
            flag @ (0 | 1) => Ok(u32::from(flag)),
            _ => Err(Cause::Protocol),
        },
        2 | id::SESSION_EXPIRY_INTERVAL | 24 => block.u32(),
        id::MAXIMUM_PACKET_SIZE => not_zero(block.u32()?),
        id::RECEIVE_MAXIMUM => not_zero(u32::from(block.u16()?)),
        19 | 34 | id::TOPIC_ALIAS => block.u16().map(u32::from),
        id::SUBSCRIPTION_IDENTIFIER => not_zero(u32::try_from(block.varint()?).map_err(|_| Cause::Malformed)?),
        id::RESPONSE_TOPIC => match block.string()? {
            topic if !is_name(topic) => Err(Cause::Protocol),
            _ => Ok(0),
        },
        3 | 18 | id::AUTHENTICATION_METHOD | 26 | 28 | 31 => block.string().map(|_| 0),
        9 | id::AUTHENTICATION_DATA => block.binary().map(|_| 0),
        id::USER_PROPERTY => {
            block.string()?;
            block.string().map(|_| 0)
        }
        _ => Err(Cause::Malformed),
    }
}

fn not_zero(value: u32) -> Result<u32, Cause> {
    if value == 0 { Err(Cause::Protocol) } else { Ok(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(owner: Owner, bytes: &[u8]) -> Result<Seen, Cause> {
        check(owner, &mut Reader::new(bytes))
    }

    #[test]
    fn a_block_ends_where_its_length_says() {
        // A user property whose value reaches beyond the block, into the payload.
        let bytes = [6, 38, 0, 1, b'k', 0, 9, b'p', b'a', b'y', b'l', b'o', b'a', b'd', b'!', b'!'];
        assert_eq!(run(Owner::Publish, &bytes), Err(Cause::Malformed));
        let mut reader = Reader::new(&[0, 7]);
        assert_eq!(check(Owner::Publish, &mut reader), Ok(Seen::default()));
        assert_eq!(reader.u8(), Ok(7));
    }

    #[test]
    fn a_property_comes_once_except_user_properties() {
        assert_eq!(run(Owner::Publish, &[4, 1, 0, 1, 0]), Err(Cause::Protocol));
        let pair = [38, 0, 1, b'k', 0, 1, b'v'];
        let twice = [[14].as_slice(), &pair, &pair].concat();
        assert!(run(Owner::Publish, &twice).is_ok_and(|seen| seen.has(id::USER_PROPERTY)));
    }

    #[test]
    fn values_that_the_standard_forbids_are_protocol_errors() {
        for (owner, bytes) in [
            (Owner::Publish, [2_u8, 1, 2].as_slice()),
            (Owner::Connect, &[3, 33, 0, 0]),
            (Owner::Connect, &[5, 39, 0, 0, 0, 0]),
            (Owner::Subscribe, &[2, 11, 0]),
            (Owner::Publish, &[4, 8, 0, 1, b'#']),
            (Owner::Connect, &[4, 22, 0, 1, 0]),
            (Owner::Publish, &[2, 11, 1]),
        ] {
            assert_eq!(run(owner, bytes), Err(Cause::Protocol), "{owner:?} {bytes:?}");
        }
    }

    #[test]
    fn a_property_that_belongs_elsewhere_or_is_cut_off_is_malformed() {
        for (owner, bytes) in [
            (Owner::Publish, [5_u8, 17, 0, 0, 0, 1].as_slice()),
            (Owner::Connect, &[2, 36, 1]),
            (Owner::Connect, &[2, 11, 1]),
            (Owner::Publish, &[2, 127, 1]),
            (Owner::Publish, &[3, 0x80, 0x01, 1]),
            (Owner::Publish, &[3, 1]),
        ] {
            assert_eq!(run(owner, bytes), Err(Cause::Malformed), "{owner:?} {bytes:?}");
        }
    }

    #[test]
    fn the_session_expiry_is_told() {
        let seen = run(Owner::Disconnect, &[5, 17, 0, 0, 0, 9]);
        assert_eq!(seen.map(|seen| seen.session_expiry), Ok(9));
    }
}
