//! Each contradiction with its mend.

use super::*;

/// The faults of a TOML text, each as `key message`.
fn found(text: &str) -> Vec<String> {
    let mut config: Config = toml::from_str(text).expect(text);
    if config.gateway.name.is_empty() {
        config.gateway.name = "edge-1".into();
    }
    let place = |key: &str| Place::Variable(key.to_owned());
    faults(&config).into_iter().map(|fault| fault.at(place).to_string()).collect()
}

#[test]
fn the_default_configuration_with_a_name_is_good() {
    assert_eq!(found(""), [""; 0]);
    assert!(check(&Config::default()).unwrap_err().to_string().contains("gateway.name is \"\""));
}

#[test]
fn a_source_as_people_write_it_is_good() {
    for source in [
        "topic = \"plant/{line}/{device}/{metric}\"\nlabels = { site = \"muc1\" }",
        "topic = \"tele/{device}/SENSOR\"\nformat = \"json\"\ntime = \"Time\"\ndrop = [\"TempUnit\"]\nonline = { topic = \"tele/{device}/LWT\", on = \"Online\", off = \"Offline\" }",
        "topic = \"plc/db1/word12\"\ndevice = \"plc1\"\nuplink.deadband = \"1%\"\nmetrics.t = { path = '\"switch:0\".t', range = [0, 150] }",
        "topic = \"z/{device...}\"\nonline.topic = \"z/{device...}/availability\"",
    ] {
        assert_eq!(found(&format!("[[source]]\n{source}")), [""; 0], "{source}");
    }
}

#[test]
fn every_contradiction_says_how_to_mend_it() {
    for (text, wanted) in [
        ("gateway.name = \"a/b\"", "gateway.name is \"a/b\"; set it to 1 to 63 letters"),
        ("gateway.namespace = \"Plant\"", "gateway.namespace is \"Plant\"; set it to 1 to 63 lower-case"),
        ("gateway.data_dir = \"data\"", "gateway.data_dir is not absolute; write it from `/` on"),
        (
            "broker.listen = \"0.0.0.0:1883\"",
            "set broker.anonymous = true if that network is trusted, or listen on \"127.0.0.1:1883\"",
        ),
        ("serve.listen = \"192.0.2.1:7480\"", "has no authentication; set it to \"127.0.0.1:7480\""),
        ("serve.listen = \"127.0.0.1:1883\"", "the port of broker.listen; set one of them to another port"),
        (
            "broker.packet_bytes_max = \"2MiB\"\nstore.commit_queue_bytes_max = \"1MiB\"",
            "store.commit_queue_bytes_max is 1MiB, less than one packet",
        ),
        ("log.level = \"inof\"", "log.level is \"inof\"; write off, error"),
        ("log.level = \"info,tidegate=\"", "log.level is"),
    ] {
        let found = found(text);
        assert!(found.iter().any(|error| error.contains(wanted)), "{text}\n wanted {wanted}\n found {found:#?}");
    }
    assert_eq!(found("broker.listen = \"0.0.0.0:1883\"\nbroker.anonymous = true"), [""; 0]);
    assert_eq!(found("log.level = \"info, tidegate::broker=debug\""), [""; 0]);
}

#[test]
fn every_odd_source_says_how_to_mend_it() {
    for (source, wanted) in [
        ("topic = \"a/b\"", "source[0].topic does not tell the device; put {device}"),
        ("topic = \"a/{device}\"\ndevice = \"x\"", "source[0].device is there, but the topic has {device}"),
        ("topic = \"a/{device}/{metric}\"\nmetric = \"x\"", "source[0].metric is there, but the topic has {metric}"),
        ("topic = \"a/x{device}\"", "source[0].topic has text and a wildcard in the level"),
        ("topic = \"$SYS/{device}\"", "begins with `$`"),
        ("topic = \"tidegate/alerts/{device}\"", "lies in tidegate/alerts"),
        (
            "topic = \"a/{device}/{line}\"\nlabels = { line = \"1\" }",
            "labels has \"line\", which the topic's {line} gives",
        ),
        ("topic = \"a/{device}\"\nlabels = { \"ü\" = \"1\" }", "labels has \"ü\"; a name takes letters"),
        ("topic = \"a/{device}\"\nonline.topic = \"a/x\"", "online.topic does not tell the device"),
        (
            "topic = \"a\"\ndevice = \"x\"\nonline.topic = \"a/{device}\"",
            "online.topic has {device}, but the source names",
        ),
        (
            "topic = \"a/{device}\"\nonline.topic = \"a/{device}/{x}\"",
            "online.topic has {x}, which the source's topic has not",
        ),
        (
            "topic = \"a/{device}\"\nonline = { topic = \"o/{device}\", on = \"A\", off = \"a\" }",
            "two words that differ",
        ),
        ("topic = \"a/{device}\"\nroot = \"a..b\"", "source[0].root has an empty part"),
        ("topic = \"a/{device}\"\ntime = \"a\\\"\"", "source[0].time has an odd quote"),
        ("topic = \"a/{device}\"\nformat = \"number\"\ntime = \"t\"", "source[0].time has no meaning without JSON"),
        ("topic = \"a/{device}\"\nmetrics.t.path = \"\"", "metrics.t.path has 0 bytes"),
        (
            "topic = \"a/{device}\"\nmetrics.a.path = \"x\"\nmetrics.b.path = \"x\"",
            "metrics.b takes the field x as metrics.a does",
        ),
        ("topic = \"a/{device}\"\nmetrics.a.path = \"x\"\ndrop = [\"y\"]", "drop has no meaning where"),
        ("topic = \"a/{device}\"\nmetrics.a.range = [2, 1]", "metrics.a.range must be two numbers"),
        ("topic = \"a/{device}\"\nmetrics.a.deadband = \"1%\"", "has a deadband in per cent and no range; add a range"),
        (
            "topic = \"a/{device}\"\nuplink.deadband = \"1%\"",
            "uplink.deadband is in per cent, but no metric has a range",
        ),
        (
            "topic = \"a/{device}\"\nuplink.deadband = \"1%\"\nmetrics.a.unit = \"Cel\"",
            "metrics.a has a deadband in per cent and no range",
        ),
        (
            "topic = \"a/{device}\"\nuplink = { min_interval = \"2m\", max_interval = \"1m\" }",
            "min_interval is 2m, above max_interval = 1m",
        ),
    ] {
        let found = found(&format!("[[source]]\n{source}"));
        assert!(found.iter().any(|error| error.contains(wanted)), "{source}\n wanted {wanted}\n found {found:#?}");
    }
}

#[test]
fn every_odd_alert_or_sink_says_how_to_mend_it() {
    for (text, wanted) in [
        ("[[alert]]\nalert = \"a.b\"\nexpr = \"x\"", "alert[0].alert is \"a.b\"; set it to"),
        ("[[alert]]\nalert = \"A\"\nexpr = \" \"", "alert[0].expr must have 1 to 4096 bytes"),
        ("[[alert]]\nalert = \"A\"\nexpr = \"x\"\non = \"\"", "alert[0].on must have"),
        ("[[alert]]\nalert = \"A\"\nexpr = \"x\"\nhysteresis = -1", "alert[0].hysteresis must not be negative"),
        ("[[sink]]\nname = \"-\"\nkafka.brokers = [\"h:1\"]", "sink[0].name is \"-\""),
        ("[[sink]]\nname = \"k\"\nkafka.brokers = []", "sink[0].kafka.brokers is empty"),
        (
            "[[sink]]\nname = \"k\"\nkafka = { brokers = [\"h:1\"], prefix = \"a b\" }",
            "sink[0].kafka.prefix is \"a b\"",
        ),
        ("[[sink]]\nname = \"k\"\nkafka = { brokers = [\"h:1\"], prefix = \".\" }", "sink[0].kafka.prefix is \".\""),
    ] {
        let found = found(text);
        assert!(found.iter().any(|error| error.contains(wanted)), "{text}\n wanted {wanted}\n found {found:#?}");
    }
}

#[test]
fn a_broker_is_a_host_and_a_port() {
    for good in ["localhost:9092", "10.0.0.1:1", "[::1]:9092", "kafka-0.example.com:65535"] {
        assert!(is_host_port(good), "{good}");
    }
    for bad in ["localhost", "localhost:", ":9092", "h:0", "h:65536", "h:+1", "http://h:1", "::1:9092", "h:1:2", "h :1"]
    {
        assert!(!is_host_port(bad), "{bad}");
    }
}

#[test]
fn a_name_that_is_there_twice_names_both_places() {
    let alert = "[[alert]]\nalert = \"Hot\"\nexpr = \"t > 1\"\n";
    let found = found(&format!("{alert}{alert}"));
    assert_eq!(
        found,
        [
            "environment variable alert[1].alert: alert \"Hot\" is already at environment variable alert[0].alert; give one of them another name or remove it"
        ]
    );
}
