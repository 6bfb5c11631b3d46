//! Why a message could not be read: fixed words, which are also the values of the metric's label `reason`.

/// Payload above 256 KiB, string or array above 64 KiB, or joined name above 1 KiB.
pub const TOO_LARGE: &str = "too_large";
/// More than 64 levels.
pub const TOO_DEEP: &str = "too_deep";
/// More than 512 keys and elements.
pub const TOO_MANY_KEYS: &str = "too_many_keys";
/// Bytes that are no UTF-8.
pub const NOT_UTF8: &str = "not_utf8";
/// Neither JSON nor one of the mends that are tried.
pub const BAD_JSON: &str = "bad_json";
/// An availability message with neither of the two words.
pub const UNKNOWN_WORD: &str = "unknown_word";
/// A device beyond its 512 metrics; the others of the message count.
pub const TOO_MANY_METRICS: &str = "too_many_metrics";
/// The device's time is more than five minutes ahead; the arrival counts instead.
pub const TIME_AHEAD: &str = "time_ahead";
/// A field that is there twice; the last one counts. The only problem that comes with readings.
pub const DUPLICATE_KEY: &str = "duplicate_key";
