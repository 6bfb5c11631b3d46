//! The time that a device puts into its message.

use super::json::Scalar;

/// 2000-01-01T00:00:00Z in Unix milliseconds: before it a device has not set its clock.
const EARLIEST_UNIX_MS: i64 = 946_684_800_000;

/// Before the year 2000.
const BEFORE_2000: &str = "before_2000";
/// A date and time without a zone: nobody knows when that was.
const NO_ZONE: &str = "no_zone";
/// Neither a number nor RFC 3339.
const UNREADABLE: &str = "unreadable";

/// Unix milliseconds of a device's time: a number whose magnitude tells its unit (below 1e11 seconds, 1e14
/// milliseconds, 1e17 microseconds, else nanoseconds), the same as text, or RFC 3339 with a zone.
///
/// `None` where the device says that it has no time: null, 0, NaN, an empty text. The error is why a time cannot be
/// used.
pub(super) fn unix_ms(scalar: &Scalar<'_>) -> Result<Option<i64>, &'static str> {
    let ms = match scalar {
        Scalar::Null | Scalar::NotFinite => return Ok(None),
        Scalar::Number(text) => number(text)?,
        Scalar::Text(text) => match text.trim() {
            "" => return Ok(None),
            text if super::number::is_json(text) => number(text)?,
            text => rfc3339(text)?,
        },
        Scalar::Bool(_) | Scalar::Array(_) => return Err(UNREADABLE),
    };
    match ms {
        0 => Ok(None),
        ms if ms < EARLIEST_UNIX_MS => Err(BEFORE_2000),
        ms => Ok(Some(ms)),
    }
}

fn number(text: &str) -> Result<i64, &'static str> {
    if let Ok(whole) = text.parse::<i64>() {
        return Ok(match whole {
            ..0 => -1,
            0..100_000_000_000 => whole * 1000,
            100_000_000_000..100_000_000_000_000 => whole,
            100_000_000_000_000..100_000_000_000_000_000 => whole / 1000,
            _ => whole / 1_000_000,
        });
    }
    let number: f64 = text.parse().map_err(|_| UNREADABLE)?;
    let ms = match number {
        n if n < 0.0 => return Ok(-1),
        n if n < 1e11 => n * 1e3,
        n if n < 1e14 => n,
        n if n < 1e17 => n / 1e3,
        n => n / 1e6,
    };
    // Later years than 9999 are no time of any device.
    if ms < 253_402_300_800_000.0 { Ok(ms.round() as i64) } else { Err(UNREADABLE) }
}

fn rfc3339(text: &str) -> Result<i64, &'static str> {
    if let Ok(time) = text.parse::<jiff::Timestamp>() {
        return Ok(time.as_millisecond());
    }
    let local = text.parse::<jiff::civil::DateTime>().is_ok();
    Err(if local { NO_ZONE } else { UNREADABLE })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::*;

    #[test]
    fn the_magnitude_of_a_number_tells_its_unit() {
        for (text, wanted) in [
            ("1764550000", Ok(Some(1_764_550_000_000))),
            ("1764550000123", Ok(Some(1_764_550_000_123))),
            ("1764550000123456", Ok(Some(1_764_550_000_123))),
            ("1764550000123456789", Ok(Some(1_764_550_000_123))),
            ("1764550000.12", Ok(Some(1_764_550_000_120))),
            ("1.76455e9", Ok(Some(1_764_550_000_000))),
            ("1764550000123.7", Ok(Some(1_764_550_000_124))),
            ("0", Ok(None)),
            ("0.0", Ok(None)),
            ("9", Err(BEFORE_2000)),
            ("-5", Err(BEFORE_2000)),
            ("-5.5", Err(BEFORE_2000)),
            ("946684799", Err(BEFORE_2000)),
            ("946684800", Ok(Some(946_684_800_000))),
            ("1e300", Err(UNREADABLE)),
        ] {
            assert_eq!(unix_ms(&Scalar::Number(text)), wanted, "{text}");
        }
    }

    #[test]
    fn a_text_is_a_time_only_with_its_zone() {
        for (text, wanted) in [
            ("2026-12-01T00:46:40.120Z", Ok(Some(1_796_086_000_120))),
            ("2026-06-19T22:53:14+02:00", Ok(Some(1_781_902_394_000))),
            ("2026-12-01T00:46:40.123456789Z", Ok(Some(1_796_086_000_123))),
            ("1764550000", Ok(Some(1_764_550_000_000))),
            ("2026-12-01T00:46:40", Err(NO_ZONE)),
            ("2026-11-12 12:25:10", Err(NO_ZONE)),
            ("1970-01-01T00:00:09Z", Err(BEFORE_2000)),
            ("@0.143040s", Err(UNREADABLE)),
            ("soon", Err(UNREADABLE)),
            ("", Ok(None)),
        ] {
            assert_eq!(unix_ms(&Scalar::Text(text.into())), wanted, "{text}");
        }
        assert_eq!(unix_ms(&Scalar::Null), Ok(None));
        assert_eq!(unix_ms(&Scalar::Bool(true)), Err(UNREADABLE));
    }
}
