//! What devices send, line by line, and what must come out.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]

use std::fmt::Write;

use proptest::prelude::*;

use super::*;
use crate::ingest::Mapping;

/// Decodes through a mapping of one source; the result as one line.
fn run(source: &str, topic: &str, payload: &[u8], replay: bool) -> String {
    let source: Source = toml::from_str(source).expect(source);
    let mut mapping = Mapping::compile(&[source], "default").unwrap();
    let Some(target) = mapping.resolve(topic) else { return "unmapped".into() };
    line(&decode(mapping.source(0).unwrap(), &target, payload, replay))
}

/// `metric=value`, with `[unit]`, `~reason` if uncertain and `!reason` if bad; `online=`, `@` the time, `#problem`.
fn line(decoded: &Decoded) -> String {
    let mut parts = Vec::new();
    for reading in &decoded.readings {
        let mut part = format!("{}=", reading.metric);
        match &reading.value {
            Some(Value::Text(text)) => write!(part, "{:?}", &**text).unwrap(),
            Some(Value::F64(number)) => write!(part, "{number:?}").unwrap(),
            Some(value) => write!(part, "{value}").unwrap(),
            None => part.push_str("none"),
        }
        reading.unit.iter().for_each(|unit| write!(part, "[{unit}]").unwrap());
        match reading.quality {
            Quality::Good => assert_eq!(reading.reason, None),
            Quality::Uncertain => write!(part, "~{}", reading.reason.unwrap()).unwrap(),
            Quality::Bad => write!(part, "!{}", reading.reason.unwrap()).unwrap(),
        }
        parts.push(part);
    }
    parts.extend(decoded.online.map(|online| format!("online={online}")));
    parts.extend(decoded.time.map(|time| format!("@{}", time.unix_ms)));
    parts.extend(decoded.time_ignored.map(|reason| format!("@?{reason}")));
    parts.extend(decoded.cleared.then(|| "cleared".into()));
    parts.extend(decoded.problem.map(|problem| format!("#{problem}")));
    parts.join(" ")
}

const PLANT: &str = "topic = \"plant/{line}/{device}/{metric}\"";
const ESP: &str = "topic = \"{device}/sensor/{metric}/state\"\nonline.topic = \"{device}/status\"";
const POWER: &str = "topic = \"stat/{device}/POWER\"\nmetric = \"power\"";
const SHELLY: &str = "topic = \"shellies/{device}/relay/0\"\nmetric = \"relay\"\nonline = { topic = \"shellies/{device}/online\", on = \"true\", off = \"false\" }";
const RPC: &str = "topic = \"{device}/events/rpc\"\nformat = \"json\"\nroot = \"params\"\ntime = \"params.ts\"\nonline = { topic = \"{device}/online\", on = \"true\", off = \"false\" }\n[metrics]\npower = { path = '\"switch:0\".apower', unit = \"W\" }\nrelay = { path = '\"switch:0\".output' }";
const STATUS: &str = "topic = \"{device}/status/{metric}\"";
const ZIGBEE: &str =
    "topic = \"zigbee2mqtt/{device...}\"\nformat = \"json\"\nonline.topic = \"zigbee2mqtt/{device...}/availability\"";
const TASMOTA: &str = "topic = \"tele/{device}/SENSOR\"\nformat = \"json\"\ntime = \"Time\"\ndrop = [\"TempUnit\"]\nonline = { topic = \"tele/{device}/LWT\", on = \"Online\", off = \"Offline\" }";
const THIN: &str = "topic = \"te/device/{device}///m/{type}\"\ntime = \"time\"";
const ALARM: &str = "topic = \"te/device/{device}///a/{metric}\"";
const HOMIE: &str = "topic = \"homie/5/{device}/thermo/{metric}\"\nonline = { topic = \"homie/5/{device}/$state\", on = \"ready\", off = \"lost\" }";
const NEURON: &str = "topic = \"/neuron/{app}/{device}/{group}\"\nroot = \"values\"\ntime = \"timestamp\"";
const TTN: &str =
    "topic = \"v3/{app}/devices/{device}/up\"\nroot = \"uplink_message.decoded_payload\"\ntime = \"received_at\"";
const SHADOW: &str = "topic = \"aws/things/{device}/shadow/update\"\nroot = \"state.reported\"";
const METER: &str = "topic = \"meter/{device}\"";
const X: &str = "topic = \"x/{device}\"";

/// Number, source, topic, payload, replay, what comes out.
type Sample = (u8, &'static str, &'static str, &'static str, bool, &'static str);

const SAMPLES: &[Sample] = &[
    (1, PLANT, "plant/l1/press07/temperature", "21.5", false, "temperature=21.5"),
    (2, ESP, "esp-boiler/sensor/flow/state", "21.50", true, "flow=21.5~retained"),
    (3, ESP, "esp-boiler/sensor/flow/state", "nan", false, "flow=none!not finite"),
    (4, ESP, "esp-boiler/status", "offline", true, "online=false"),
    (5, POWER, "stat/pump3/POWER", "ON", false, "power=true"),
    (6, SHELLY, "shellies/sh1-A1B2C3/relay/0", "on", false, "relay=true"),
    (7, SHELLY, "shellies/sh1-A1B2C3/online", "false", true, "online=false"),
    (8, RPC, "sh2-0a1b2c/online", "true", true, "online=true"),
    (
        9,
        RPC,
        "sh2-0a1b2c/events/rpc",
        r#"{"src":"sh2-0a1b2c","dst":"x","method":"NotifyStatus","params":{"ts":1764550000.12,"switch:0":{"id":0,"apower":41.7}}}"#,
        false,
        "power=41.7[W] @1764550000120",
    ),
    (
        10,
        STATUS,
        "sh2-0a1b2c/status/switch:0",
        r#"{"id":0,"output":true,"apower":41.7,"temperature":{"tC":39.1,"tF":102.4}}"#,
        false,
        "switch:0.id=0 switch:0.output=true switch:0.apower=41.7 switch:0.temperature.tC=39.1 switch:0.temperature.tF=102.4",
    ),
    (
        11,
        ZIGBEE,
        "zigbee2mqtt/hall/door 4",
        r#"{"contact":false,"battery":87,"linkquality":112,"voltage":2985}"#,
        false,
        "contact=false battery=87 linkquality=112 voltage=2985",
    ),
    (12, ZIGBEE, "zigbee2mqtt/btn1", r#"{"action":"single"}"#, false, "action=\"single\""),
    (13, ZIGBEE, "zigbee2mqtt/btn1", r#"{"action":""}"#, false, "action=\"\""),
    (14, ZIGBEE, "zigbee2mqtt/hall/door 4/availability", r#"{"state":"offline"}"#, true, "online=false"),
    (
        15,
        TASMOTA,
        "tele/th10/SENSOR",
        r#"{"Time":"2026-12-01T00:46:40","AM2301":{"Temperature":22.6,"Humidity":null},"TempUnit":"C"}"#,
        false,
        "AM2301.Temperature=22.6 AM2301.Humidity=none!null @?no_zone",
    ),
    (
        16,
        TASMOTA,
        "tele/th10/SENSOR",
        r#"{"Time":"1970-01-01T00:00:09","ANALOG":{"A0":1023}}"#,
        false,
        "ANALOG.A0=1023 @?no_zone",
    ),
    (
        17,
        TASMOTA,
        "tele/th10/SENSOR",
        r#"{"Time":"2026-12-01T00:46:40","DHT11":{"Temperature":nan,"Humidity":nan},"Vcc":3.15}"#,
        false,
        "DHT11.Temperature=none!not finite DHT11.Humidity=none!not finite Vcc=3.15 @?no_zone",
    ),
    (18, TASMOTA, "tele/th10/LWT", "Online", true, "online=true"),
    (
        19,
        THIN,
        "te/device/main///m/env",
        r#"{"temperature":23.4,"time":"2026-12-01T00:46:40.120Z"}"#,
        false,
        "temperature=23.4 @1796086000120",
    ),
    (
        20,
        ALARM,
        "te/device/press07///a/hot",
        r#"{"severity":"critical","text":"too hot"}"#,
        true,
        "hot.severity=\"critical\"~retained hot.text=\"too hot\"~retained",
    ),
    (21, ALARM, "te/device/press07///a/hot", "", true, "cleared"),
    (22, HOMIE, "homie/5/dev9/thermo/temp", "21.5", true, "temp=21.5~retained"),
    (23, HOMIE, "homie/5/dev9/$state", "lost", true, "online=false"),
    (
        25,
        NEURON,
        "/neuron/mq1/plc1/fast",
        r#"{"timestamp":1764550000123,"node":"plc1","group":"fast","values":{"t1":21.5},"errors":{"t2":2014}}"#,
        false,
        "t1=21.5 @1764550000123",
    ),
    (
        27,
        TTN,
        "v3/app@t/devices/eui-70b3/up",
        r#"{"received_at":"2026-12-01T00:46:40.123456789Z","uplink_message":{"f_cnt":7,"frm_payload":"ARUA","decoded_payload":{"t":21.5}}}"#,
        false,
        "t=21.5 @1796086000123",
    ),
    (
        28,
        SHADOW,
        "aws/things/p7/shadow/update",
        r#"{"state":{"reported":{"t":21.5},"desired":null},"version":12}"#,
        false,
        "t=21.5",
    ),
    (29, METER, "meter/7", "[16812,0]", false, "0=16812 1=0"),
    (30, METER, "meter/7", "1764550000,21.5,,ERR,0x1F", false, "value=\"1764550000,21.5,,ERR,0x1F\""),
    (32, METER, "meter/7", r#"{"total_wh":9007199254740993}"#, false, "total_wh=9007199254740993"),
    (33, METER, "meter/7", r#"{"total_wh":18446744073709551616}"#, false, "total_wh=\"18446744073709551616\"~lossy"),
    (34, METER, "meter/7", r#"{"v":"230.1 V","i":"1,25"}"#, false, "v=\"230.1 V\" i=\"1,25\""),
    (35, METER, "meter/7", r#"{"ts":1764550000123456,"v":1}{"ts":1764550000123457,"v":2}"#, false, "#bad_json"),
    (36, X, "x/dup", r#"{"a":1,"a":2}"#, false, "a=2 #duplicate_key"),
    (37, X, "x/bom", "\u{feff}{\"a\":1}\0", false, "a=1"),
];

#[test]
fn the_samples_of_the_field_give_the_wanted_twins() {
    for (number, source, topic, payload, replay, wanted) in SAMPLES {
        assert_eq!(run(source, topic, payload.as_bytes(), *replay), *wanted, "sample {number}");
    }
}

#[test]
fn samples_that_are_no_text_or_beyond_a_bound_are_a_problem_and_no_panic() {
    let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
    let big = format!("{{\"a\":[{}1]}}", "1,".repeat(5 << 20));
    for (payload, wanted) in [
        (deep.as_bytes(), "#too_deep"),
        (b"\xff\x00\xfe\x80", "#not_utf8"),
        (b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03", "#not_utf8"),
        (b"\xa3\x62\x74\x73\x1b\x00\x00\x01\x9a\xd7\x60", "#not_utf8"),
        (b"\x08\xfb\xfb\x80\xbb\xad\x33\x12\x14", "#not_utf8"),
        (big.as_bytes(), "#too_large"),
        (&b"x".repeat(70_000), "#too_large"),
        (&b"9".repeat(70_000), "#too_large"),
    ] {
        assert_eq!(run(X, "x/y", payload, false), wanted);
    }
}

#[test]
fn a_bare_value_is_a_number_a_word_or_a_text() {
    for (payload, wanted) in [
        ("23,9", "value=\"23,9\"!decimal comma?"),
        ("1,000", "value=\"1,000\"!decimal comma or thousands?"),
        ("1,016.76", "value=\"1,016.76\"!thousands separator?"),
        ("1.016,76", "value=\"1.016,76\"!decimal comma?"),
        ("1\u{a0}016,76", "value=\"1\u{a0}016,76\"!decimal comma?"),
        ("-0,5", "value=\"-0,5\"!decimal comma?"),
        (",5", "value=\",5\"!decimal comma?"),
        ("5,", "value=\"5,\"!not a number"),
        ("23.9 °C", "value=\"23.9 °C\""),
        ("1e3", "value=1000.0"),
        ("0x10", "value=\"0x10\""),
        ("+5", "value=5"),
        (" 7\n", "value=7"),
        ("NaN", "value=none!not finite"),
        ("١٢", "value=\"١٢\""),
        ("OFF", "value=false"),
        ("True", "value=true"),
        ("online", "value=true"),
        ("open", "value=\"open\""),
        ("1.5\0\0", "value=1.5"),
    ] {
        assert_eq!(run(X, "x/y", payload.as_bytes(), false), wanted.replace('\u{a0}', "\\u{a0}"), "{payload}");
    }
}

#[test]
fn a_json_string_stays_a_text_whatever_it_looks_like() {
    for text in ["23,9", "1,000", "1e3", "21.5", "ON", "NaN", "00406477", "1600000000"] {
        assert_eq!(run(X, "x/y", format!("{{\"v\":\"{text}\"}}").as_bytes(), false), format!("v=\"{text}\""));
    }
}

#[test]
fn a_format_that_is_set_takes_nothing_else() {
    for (format, payload, wanted) in [
        ("number", "21.5", "value=21.5"),
        ("number", "ON", "value=\"ON\"!not a number"),
        ("number", "{\"a\":1}", "value=\"{\\\"a\\\":1}\"!not a number"),
        ("number", "nan", "value=none!not finite"),
        ("number", "23,9", "value=\"23,9\"!decimal comma?"),
        ("text", " 21.5 ", "value=\" 21.5 \""),
        ("text", "{}", "value=\"{}\""),
        ("json", "21.5", "value=21.5"),
        ("json", "\"ON\"", "value=\"ON\""),
        ("json", "null", "value=none!null"),
        ("json", "ON", "#bad_json"),
        ("json", "23,9", "#bad_json"),
    ] {
        let source = format!("{X}\nformat = \"{format}\"");
        assert_eq!(run(&source, "x/y", payload.as_bytes(), false), wanted, "{format} {payload}");
    }
}

#[test]
fn a_metric_that_is_named_by_its_place_is_taken_and_no_other() {
    let source = format!(
        "{X}\n[metrics]\nboiler = {{ path = \"DS18B20-1.Temperature\", unit = \"Cel\" }}\nhot = {{}}\n\"rx.0.rssi\" = {{}}\nlist = {{}}"
    );
    let payload = r#"{"Id":"a","DS18B20-1":{"Id":"A001","Temperature":21.1},"hot":true,"rx":[{"rssi":-80},{"rssi":-90}],"list":[1,2]}"#;
    assert_eq!(
        run(&source, "x/y", payload.as_bytes(), false),
        "boiler=21.1[Cel] hot=true rx.0.rssi=-80 list=\"[1,2]\""
    );
    assert_eq!(run(&source, "x/y", b"{\"other\":1}", false), "", "a message without the field says nothing of it");
    assert_eq!(run(&source, "x/y", b"7", false), "value=7");
    let bare = format!("{PLANT}\nmetrics.temperature.unit = \"Cel\"");
    assert_eq!(run(&bare, "plant/l1/p/temperature", b"21.5", false), "temperature=21.5[Cel]");
    assert_eq!(run(&bare, "plant/l1/p/vibration", b"1", false), "vibration=1");
}

#[test]
fn fields_are_left_out_by_name_with_all_below_and_by_beginning() {
    let source = format!("{X}\ndrop = [\"update\", \"link*\", '\"a b\".c']");
    let payload = r#"{"update":{"state":"idle"},"updated":1,"linkquality":1,"a b":{"c":1,"d":2},"link":{"x":1}}"#;
    assert_eq!(run(&source, "x/y", payload.as_bytes(), false), "updated=1 a b.d=2");
}

#[test]
fn a_root_that_is_a_value_is_a_bare_value() {
    let source = format!("{PLANT}\nroot = \"v\"");
    assert_eq!(run(&source, "plant/l1/p/temperature", br#"{"v":21.5,"q":0}"#, false), "temperature=21.5");
    assert_eq!(run(&source, "plant/l1/p/temperature", br#"{"v":{"x":1},"vv":2}"#, false), "temperature.x=1");
    assert_eq!(run(&source, "plant/l1/p/temperature", br#"{"q":0}"#, false), "");
}

#[test]
fn a_twin_update_as_people_write_it_keeps_each_name_exact() {
    let source = "topic = \"hw/{device}/twin/update\"\nroot = \"twin\"\ntime = \"timestamp\"";
    for (payload, wanted) in [
        (r#"{"event_id":"","timestamp":0,"twin":{"s":{"actual":{"value":"23C"}}}}"#, "s.actual.value=\"23C\""),
        (
            r#"{ "timestamp": 0,"twin": {"t":{"actual":{ "value": "23"}}, "h":{"actual": {" value": "29" }}}}"#,
            "t.actual.value=\"23\" h.actual. value=\"29\"",
        ),
        (
            r#"{"timestamp":1764550002123,"twin":{"url":{"actual":{"value":"rtsp://[2001:db8::1]/s?a=1&b=\u00e9"}},"gone":null}}"#,
            "url.actual.value=\"rtsp://[2001:db8::1]/s?a=1&b=é\" gone=none!null @1764550002123",
        ),
    ] {
        assert_eq!(run(source, "hw/d/twin/update", payload.as_bytes(), false), wanted);
    }
}

#[test]
fn last_seen_is_a_field_unless_it_is_mapped_as_the_time() {
    for (payload, plain, mapped) in [
        (
            r#"{"s":"OFF","last_seen":"2026-06-18T03:59:01.488Z"}"#,
            "s=\"OFF\" last_seen=\"2026-06-18T03:59:01.488Z\"",
            "s=\"OFF\" @1781755141488",
        ),
        (r#"{"s":"ON","last_seen":1781912005298}"#, "s=\"ON\" last_seen=1781912005298", "s=\"ON\" @1781912005298"),
        (r#"{"s":"ON","last_seen":null}"#, "s=\"ON\" last_seen=none!null", "s=\"ON\""),
    ] {
        assert_eq!(run(X, "x/y", payload.as_bytes(), false), plain);
        assert_eq!(run(&format!("{X}\ntime = \"last_seen\""), "x/y", payload.as_bytes(), false), mapped);
    }
}

#[test]
fn an_availability_message_is_one_of_its_two_words() {
    for (payload, wanted) in [
        ("online", "online=true"),
        (" OFFLINE\n", "online=false"),
        (r#"{"state":"online","since":1}"#, "online=true"),
        ("away", "#unknown_word"),
        ("{\"state\":1}", "#unknown_word"),
        ("{\"state\"", "#unknown_word"),
        ("", "cleared"),
    ] {
        assert_eq!(run(ESP, "e/status", payload.as_bytes(), false), wanted, "{payload}");
    }
}

#[test]
fn a_replay_makes_good_values_uncertain_and_leaves_bad_ones() {
    assert_eq!(run(X, "x/y", b"{\"a\":1,\"b\":null}", true), "a=1~retained b=none!null");
}

#[test]
fn a_message_that_breaks_off_gives_no_reading_at_all() {
    assert_eq!(run(X, "x/y", br#"{"a":1,"b":2"#, false), "#bad_json");
    assert_eq!(run(X, "x/y", br#"{"a":1,"a":2,"b":"#, false), "#bad_json");
}

proptest! {
    #[test]
    fn no_bytes_panic_and_no_reading_is_without_bounds(
        payload in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..200),
            "[ \\[\\]{}\",:0-9a-z.eE+NnIi\\\\u-]{0,80}".prop_map(String::into_bytes),
        ],
        source in prop::sample::select(vec![PLANT, ESP, RPC, TASMOTA, ZIGBEE, NEURON, TTN, HOMIE]),
        topic in prop::sample::select(vec!["plant/a/b/c", "a/status", "a/events/rpc", "tele/a/SENSOR", "zigbee2mqtt/a"]),
        replay: bool,
    ) {
        let source: Source = toml::from_str(source).unwrap();
        let mut mapping = Mapping::compile(&[source], "default").unwrap();
        if let Some(target) = mapping.resolve(topic) {
            let decoded = decode(mapping.source(0).unwrap(), &target, &payload, replay);
            prop_assert!(decoded.readings.len() <= 512);
            if decoded.problem.is_some_and(|problem| problem != problem::DUPLICATE_KEY) {
                prop_assert!(decoded.readings.is_empty() && decoded.time.is_none());
            }
            for reading in &decoded.readings {
                prop_assert!(!(replay && reading.quality == Quality::Good));
                prop_assert!(reading.value.is_some() || reading.quality == Quality::Bad);
                if let Some(Value::F64(number)) = reading.value {
                    prop_assert!(number.is_finite());
                }
            }
        }
    }
}
