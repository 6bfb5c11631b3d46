//! The MQTT front over real TCP, with bytes and with rumqttc.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]

mod cases;
mod clients;
mod gateway;
mod sequences;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gateway::{Gateway, connect_v4, connect_v5, packet, publish_v4, publish_v5, subscribe, text};
use tidegate::broker::Verdict;
use tidegate::config;
use tidegate::model::{Lsn, QoS, Seq};
use tidegate::runtime::clock::{Clock as _, SystemClock};

fn stored(lsn: u64, seq: u64) -> Verdict {
    Verdict::Stored { lsn: Lsn(lsn), seq: Some(Seq(seq)) }
}

fn since(start: Duration) -> Duration {
    SystemClock.ticks().saturating_sub(start)
}

#[tokio::test]
async fn no_puback_goes_out_before_the_disk_has_it_and_they_keep_their_order() {
    let mut gateway = Gateway::start().await;
    let mut raw = gateway.v4("c").await;
    raw.send(&[publish_v4("t", 1, b"a"), publish_v4("t", 2, b"b")].concat()).await;
    let first = gateway.next_inbound().await;
    let second = gateway.next_inbound().await;
    assert_eq!((&*first.message.client, &*first.message.topic, &first.message.payload[..]), ("c", "t", &b"a"[..]));
    second.ticket.unwrap().settle(stored(1, 1));
    first.ticket.unwrap().settle(stored(2, 2));
    gateway.durable.send_replace(Lsn(1));
    raw.ping().await;
    gateway.durable.send_replace(Lsn(2));
    raw.expect(&[0x40, 2, 0, 1, 0x40, 2, 0, 2]).await;
    assert_eq!(gateway.sample("tidegate_ack_latency_seconds_count"), Some(2.0));
    gateway.stop().await;
}

#[tokio::test]
async fn a_receipt_tells_the_seq_to_those_who_asked() {
    let mut gateway = Gateway::start().await;
    let mut raw = gateway.dial().await;
    let property = [&[0x26][..], &text("tidegate-receipts"), &text("1")].concat();
    raw.send(&connect_v5(2, &property, &text("c"))).await;
    raw.packet().await;
    raw.send(&publish_v5("t", 9, b"a")).await;
    gateway.next_inbound().await.ticket.unwrap().settle(stored(0, 4711));
    let receipt = [&[0, 9, 0, 21, 0x26][..], &text("tidegate-seq"), &text("4711")].concat();
    raw.expect(&packet(0x40, &receipt)).await;
    gateway.stop().await;
}

#[tokio::test]
async fn a_refused_publish_is_told_to_mqtt_5_and_never_acknowledged_to_3_1_1() {
    let mut gateway = Gateway::start().await;
    let mut v5 = gateway.v5("five").await;
    let mut v4 = gateway.v4("four").await;
    v5.send(&[publish_v5("t", 1, b""), publish_v5("t", 2, b"")].concat()).await;
    gateway.next_inbound().await.ticket.unwrap().settle(Verdict::Refused);
    gateway.next_inbound().await.ticket.unwrap().settle(stored(0, 1));
    v5.expect(&[0x40, 4, 0, 1, 0x97, 0, 0x40, 2, 0, 2]).await;
    v4.send(&[publish_v4("t", 1, b""), publish_v4("t", 2, b"")].concat()).await;
    // A ticket that is dropped is a refusal, too.
    drop(gateway.next_inbound().await);
    gateway.next_inbound().await.ticket.unwrap().settle(stored(0, 1));
    v4.expect(&[0x40, 2, 0, 2]).await;
    v4.ping().await;
    gateway.stop().await;
}

#[tokio::test]
async fn a_3_1_1_client_whose_publish_was_refused_has_to_come_back_when_there_is_room_again() {
    let mut gateway = Gateway::start().await;
    gateway.durable.send_replace(Lsn(7));
    let mut raw = gateway.v4("c").await;
    raw.send(&[publish_v4("t", 1, b""), publish_v4("t", 2, b"")].concat()).await;
    drop(gateway.next_inbound().await);
    gateway.next_inbound().await.ticket.unwrap().settle(stored(8, 1));
    raw.ping().await;
    gateway.durable.send_replace(Lsn(8));
    assert_eq!(raw.closed().await, [0x40, 2, 0, 2], "what is stored is acknowledged before");
    assert_eq!(gateway.sample("tidegate_mqtt_connections_closed_total{reason=\"unstored\"}"), Some(1.0));
    gateway.stop().await;
}

#[tokio::test]
async fn a_refusal_is_not_forgotten_when_the_disk_went_on_before_it_was_heard() {
    let mut gateway = Gateway::start().await;
    let mut raw = gateway.v4("c").await;
    raw.send(&publish_v4("t", 1, b"")).await;
    let inbound = gateway.next_inbound().await;
    gateway.durable.send_replace(Lsn(1));
    drop(inbound);
    assert_eq!(raw.closed().await, [0; 0]);
    gateway.stop().await;
}

#[tokio::test]
async fn an_engine_that_takes_nothing_stops_neither_pings_nor_deliveries() {
    let mut gateway = Gateway::start_with(config::Broker::default(), 1).await;
    let mut raw = gateway.subscriber(4, "c", "t").await;
    let mut burst: Vec<u8> = (0..20).flat_map(|n| publish_v4("t", 0, &[n])).collect();
    burst.extend([0xC0, 0]);
    raw.send(&burst).await;
    let mut payloads = Vec::new();
    let mut is_pinged = false;
    while !is_pinged || payloads.len() < 20 {
        match raw.packet().await[..] {
            [0x30, .., payload] => payloads.push(payload),
            [0xD0, 0] => is_pinged = true,
            ref other => panic!("{other:x?}"),
        }
    }
    assert!(payloads.is_sorted());
    for n in 0..20 {
        assert_eq!(gateway.next_inbound().await.message.payload[..], [n]);
    }
    gateway.stop().await;
}

#[tokio::test]
async fn what_was_sent_before_the_end_arrives_whole_and_in_order() {
    // An engine that takes one at a time, and one that is never full.
    for inbound_max in [1, 4096] {
        let mut gateway = Gateway::start_with(config::Broker::default(), inbound_max).await;
        let mut raw = gateway.v4("c").await;
        let burst: Vec<u8> = (0..2000_u16).flat_map(|n| publish_v4("t", 0, &n.to_be_bytes())).collect();
        raw.send(&burst).await;
        drop(raw);
        for n in 0..2000_u16 {
            assert_eq!(gateway.next_inbound().await.message.payload[..], n.to_be_bytes());
        }
        gateway.stop().await;
    }
}

#[tokio::test]
async fn a_refusal_that_3_1_1_is_not_told_makes_room_for_the_next_publish() {
    let options = config::Broker { inflight_max: 1, ..config::Broker::default() };
    let mut gateway = Gateway::start_with(options, 16).await;
    let mut raw = gateway.v4("c").await;
    raw.send(&[publish_v4("t", 1, b"a"), publish_v4("t", 2, b"b")].concat()).await;
    drop(gateway.next_inbound().await);
    gateway.next_inbound().await.ticket.unwrap().settle(stored(0, 1));
    raw.expect(&[0x40, 2, 0, 2]).await;
    gateway.stop().await;
}

#[tokio::test]
async fn many_publishers_do_not_overrun_a_subscriber_that_reads() {
    let options = config::Broker { outbound_max: 100, ..config::Broker::default() };
    let mut gateway = Gateway::start_with(options, 16).await;
    gateway.run_engine();
    let mut reader = gateway.subscriber(4, "reader", "t").await;
    let mut senders = Vec::new();
    for n in 0..10 {
        senders.push(gateway.v4(&format!("sender-{n}")).await);
    }
    for sender in &mut senders {
        sender.send(&publish_v4("t", 0, b"1").repeat(200)).await;
    }
    reader.expect(&publish_v4("t", 0, b"1").repeat(2000)).await;
    gateway.stop().await;
}

#[tokio::test]
async fn a_client_that_comes_back_does_not_overtake_itself() {
    let mut gateway = Gateway::start_with(config::Broker::default(), 1).await;
    let mut witness = gateway.v4("witness").await;
    let mut old = gateway.dial().await;
    old.send(&with_will()).await;
    old.packet().await;
    for n in 0..20 {
        old.send(&publish_v5("old", 0, &[n])).await;
    }
    old.ping().await;
    let mut new = gateway.dial().await;
    new.send(&[connect_v4("c", 60), publish_v4("new", 0, b"")].concat()).await;
    assert_eq!(old.closed().await, [0xE0, 1, 0x8E]);
    for _ in 0..50 {
        witness.ping().await;
    }
    for n in 0..20 {
        assert_eq!(gateway.next_inbound().await.message.payload[..], [n]);
    }
    for topic in ["w", "new"] {
        assert_eq!(&*gateway.next_inbound().await.message.topic, topic);
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_client_id_of_any_characters_connects_twice() {
    let gateway = Gateway::start().await;
    for client in ["a/b", "+", "#", "$SYS", "压力机 4"] {
        let mut first = gateway.v4(client).await;
        let mut second = gateway.v5(client).await;
        assert!(first.closed().await.is_empty());
        second.ping().await;
    }
    gateway.stop().await;
}

#[tokio::test]
async fn beyond_connections_max_clients_are_told_and_may_take_themselves_over() {
    let options = config::Broker { connections_max: 1, ..config::Broker::default() };
    let gateway = Gateway::start_with(options, 16).await;
    let mut first = gateway.v5("first").await;
    for _ in 0..3 {
        let mut v4 = gateway.dial().await;
        v4.send(&connect_v4("other", 60)).await;
        assert_eq!(v4.closed().await, [0x20, 2, 0, 3]);
        let mut v5 = gateway.dial().await;
        v5.send(&connect_v5(2, &[], &text("other"))).await;
        assert_eq!(v5.closed().await, [0x20, 3, 0, 0x97, 0]);
    }
    assert_eq!(gateway.sample("tidegate_mqtt_connections_closed_total{reason=\"connections_max\"}"), Some(6.0));
    first.ping().await;
    let mut again = gateway.v5("first").await;
    assert_eq!(first.closed().await, [0xE0, 1, 0x8E]);
    again.ping().await;
    gateway.stop().await;
}

#[tokio::test]
async fn a_topic_in_chinese_reaches_subscribers_of_both_versions() {
    let mut gateway = Gateway::start().await;
    gateway.run_engine();
    let mut v4 = gateway.subscriber(4, "four", "压力机/+").await;
    let mut v5 = gateway.subscriber(5, "five", "#").await;
    let mut sender = gateway.v4("sender").await;
    sender.send(&publish_v4("压力机/温度", 0, b"20")).await;
    v4.expect(&publish_v4("压力机/温度", 0, b"20")).await;
    v5.expect(&publish_v5("压力机/温度", 0, b"20")).await;
    gateway.stop().await;
}

#[tokio::test]
async fn subscribers_that_leave_under_a_flood_harm_nobody() {
    let mut gateway = Gateway::start().await;
    gateway.run_engine();
    let mut flood = gateway.v4("flood").await;
    let burst = publish_v4("t", 0, &[0; 100]).repeat(300);
    for n in 0..30 {
        let mut leaver = gateway.subscriber(if n % 2 == 0 { 4 } else { 5 }, "leaver", "t").await;
        flood.send(&burst).await;
        leaver.send(&[0xE0, 0]).await;
        drop(leaver);
    }
    flood.ping().await;
    let mut fresh = gateway.subscriber(4, "fresh", "u").await;
    flood.send(&publish_v4("u", 0, b"1")).await;
    fresh.expect(&publish_v4("u", 0, b"1")).await;
    gateway.stop().await;
}

#[tokio::test]
async fn packets_of_servers_close_the_connection_and_nothing_else() {
    let gateway = Gateway::start().await;
    let mut witness = gateway.v5("witness").await;
    for bytes in [&[0x20, 3, 0, 0, 0][..], &[0xB0, 4, 0, 1, 0, 0], &[0x90, 4, 0, 1, 0, 0], &[0xD0, 0], &[0x50, 2, 0, 1]]
    {
        let mut raw = gateway.v5("c").await;
        raw.send(bytes).await;
        assert_eq!(raw.closed().await, [0xE0, 1, 0x82], "{bytes:x?}");
        let mut raw = gateway.v4("c").await;
        raw.send(bytes).await;
        assert!(raw.closed().await.is_empty(), "{bytes:x?}");
    }
    let mut twice = gateway.v5("c").await;
    twice.send(&connect_v5(2, &[], &text("c"))).await;
    assert_eq!(twice.closed().await, [0xE0, 1, 0x82]);
    witness.ping().await;
    gateway.stop().await;
}

#[tokio::test]
async fn qos_2_is_refused_in_the_words_of_the_version() {
    let gateway = Gateway::start().await;
    let mut v5 = gateway.v5("five").await;
    v5.send(&packet(0x34, &[&text("t")[..], &[0, 1, 0]].concat())).await;
    assert_eq!(v5.closed().await, [0xE0, 1, 0x9B]);
    let mut v4 = gateway.v4("four").await;
    v4.send(&packet(0x34, &[&text("t")[..], &[0, 1]].concat())).await;
    assert!(v4.closed().await.is_empty());
    gateway.stop().await;
}

#[tokio::test]
async fn a_packet_that_is_too_large_is_refused_while_it_is_being_sent() {
    let options = config::Broker { packet_bytes_max: config::ByteSize::kib(1), ..config::Broker::default() };
    let gateway = Gateway::start_with(options, 16).await;
    let mut raw = gateway.v5("c").await;
    raw.send(&publish_v5("t", 0, &vec![0; 64 << 10])[..32 << 10]).await;
    raw.expect(&[0xE0, 1, 0x95]).await;
    gateway.stop().await;
}

#[tokio::test]
async fn all_of_500_retained_messages_arrive_although_the_queue_is_short() {
    let options = config::Broker { outbound_max: 10, ..config::Broker::default() };
    let gateway = Gateway::start_with(options, 16).await;
    for n in 0..500 {
        gateway.alerter.publish(format!("r/{n}").into(), Bytes::from_static(b"1"), QoS::AtLeastOnce, true);
    }
    assert_eq!(gateway.sample("tidegate_mqtt_retained"), Some(500.0));
    for (version, qos) in [(4, 0), (5, 0), (4, 1), (5, 1)] {
        let mut raw = if version == 5 { gateway.v5("c").await } else { gateway.v4("c").await };
        raw.send(&subscribe(version, "r/#", qos)).await;
        raw.packet().await;
        let mut topics = std::collections::BTreeSet::new();
        while topics.len() < 500 {
            let publish = raw.packet().await;
            assert_eq!(publish[0], 0x31 | qos << 1, "retained, and of the granted QoS");
            let end = 4 + usize::from(publish[3]);
            topics.insert(publish[4..end].to_vec());
            if qos == 1 {
                raw.send(&[0x40, 2, publish[end], publish[end + 1]]).await;
            }
        }
    }
    gateway.stop().await;
}

#[tokio::test]
async fn an_alert_reaches_subscribers_from_a_thread_without_a_runtime() {
    let gateway = Gateway::start().await;
    let mut raw = gateway.subscriber(4, "c", "tidegate/alerts/#").await;
    let alerter = gateway.alerter.clone();
    let engine = std::thread::Builder::new().spawn(move || {
        alerter.publish("tidegate/alerts/Hot/press".into(), Bytes::from_static(b"{}"), QoS::AtLeastOnce, true);
        alerter.publish("not/a/#/name".into(), Bytes::new(), QoS::AtMostOnce, false);
    });
    engine.unwrap().join().unwrap();
    raw.expect(&publish_v4("tidegate/alerts/Hot/press", 1, b"{}")).await;
    let dropped = gateway.sample("tidegate_mqtt_deliveries_dropped_total{reason=\"invalid_topic\"}");
    assert_eq!(dropped, Some(1.0));
    gateway.stop().await;
}

#[tokio::test]
async fn a_subscriber_that_does_not_read_blocks_nobody() {
    let options = config::Broker { outbound_max: 10, ..config::Broker::default() };
    let gateway = Gateway::start_with(options, 16).await;
    let _idle = gateway.subscriber(4, "idle", "#").await;
    let mut reader = gateway.subscriber(4, "reader", "#").await;
    let payload = Bytes::from(vec![7; 200 << 10]);
    for _ in 0..60 {
        gateway.alerter.publish("t".into(), payload.clone(), QoS::AtMostOnce, false);
        reader.expect(&publish_v4("t", 0, &payload)).await;
    }
    let dropped = gateway.sample("tidegate_mqtt_deliveries_dropped_total{reason=\"slow_subscriber\"}");
    assert!(dropped.is_some_and(|dropped| dropped >= 1.0), "{dropped:?}");
    // QoS 1 is never dropped in silence: the one who does not keep up is disconnected.
    for _ in 0..70 {
        gateway.alerter.publish("t".into(), Bytes::new(), QoS::AtLeastOnce, false);
        let publish = reader.packet().await;
        reader.send(&[0x40, 2, publish[5], publish[6]]).await;
    }
    reader.ping().await;
    let closed = gateway.sample("tidegate_mqtt_connections_closed_total{reason=\"slow_subscriber\"}");
    assert_eq!(closed, Some(1.0));
    gateway.stop().await;
}

#[tokio::test]
async fn only_what_is_received_keeps_a_connection_alive() {
    let gateway = Gateway::start().await;
    let mut raw = gateway.dial().await;
    raw.send(&connect_v4("c", 1)).await;
    raw.expect(&[0x20, 2, 0, 0]).await;
    raw.send(&subscribe(4, "t", 0)).await;
    raw.expect(&[0x90, 3, 0, 1, 0]).await;
    let (start, mut ticks) = (SystemClock.ticks(), tokio::time::interval(Duration::from_millis(100)));
    let traffic = async {
        loop {
            ticks.tick().await;
            gateway.alerter.publish("t".into(), Bytes::new(), QoS::AtMostOnce, false);
        }
    };
    tokio::select! {
        _ = raw.closed() => {}
        () = traffic => {}
    }
    let silence = since(start);
    assert!(silence >= Duration::from_millis(1400) && silence < Duration::from_secs(4), "{silence:?}");
    assert_eq!(gateway.sample("tidegate_mqtt_connections_closed_total{reason=\"keep_alive\"}"), Some(1.0));
    gateway.stop().await;
}

#[tokio::test]
async fn a_connection_that_says_nothing_is_closed() {
    let options =
        config::Broker { connect_timeout: config::Span(Duration::from_millis(50)), ..config::Broker::default() };
    let gateway = Gateway::start_with(options, 16).await;
    assert!(gateway.dial().await.closed().await.is_empty());
    let mut half = gateway.dial().await;
    half.send(&connect_v4("c", 60)[..5]).await;
    assert!(half.closed().await.is_empty());
    gateway.stop().await;
}

/// CONNECT of MQTT 5 with a will on `w`, and client id `c`.
fn with_will() -> Vec<u8> {
    connect_v5(0x0e, &[], &[&text("c")[..], &[0], &text("w"), &text("gone")].concat())
}

#[tokio::test]
async fn the_will_of_a_taken_over_client_comes_before_what_it_says_next() {
    let mut gateway = Gateway::start().await;
    let mut observer = gateway.subscriber(4, "observer", "#").await;
    for round in 0..10 {
        let mut old = gateway.dial().await;
        old.send(&with_will()).await;
        old.packet().await;
        old.send(&publish_v5("old", 0, &[round])).await;
        observer.expect(&publish_v4("old", 0, &[round])).await;
        let mut new = gateway.dial().await;
        new.send(&[connect_v4("c", 60), publish_v4("new", 0, b""), vec![0xE0, 0]].concat()).await;
        assert_eq!(old.closed().await, [0xE0, 1, 0x8E]);
        let will = observer.packet().await;
        assert_eq!(will, packet(0x32, &[&text("w")[..], &[0, round + 1], b"gone"].concat()));
        observer.send(&[0x40, 2, 0, round + 1]).await;
        observer.expect(&publish_v4("new", 0, b"")).await;
        for topic in ["old", "w", "new"] {
            assert_eq!(&*gateway.next_inbound().await.message.topic, topic);
        }
    }
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g09_a_publish_before_a_goodbye_counts_however_soon_the_client_is_back() {
    use std::io::Write as _;
    let mut gateway = Gateway::start().await;
    for _ in 0..5 {
        // Without a wait between them, so that the broker meets all twenty at once.
        for n in 0..20 {
            let mut socket = std::net::TcpStream::connect(gateway.address).unwrap();
            let words = [connect_v4("button", 60), publish_v4("button", 0, &[n]), vec![0xE0, 0]].concat();
            socket.write_all(&words).unwrap();
        }
        let mut heard = Vec::new();
        for _ in 0..20 {
            heard.extend_from_slice(&gateway.next_inbound().await.message.payload);
        }
        // Which of two connections comes first is the scheduler's business.
        heard.sort_unstable();
        assert_eq!(heard, (0..20).collect::<Vec<u8>>());
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_will_goes_out_unless_the_client_says_goodbye() {
    let mut gateway = Gateway::start().await;
    for (goodbye, with_will_expected) in
        [(&[][..], true), (&[0xE0, 1, 4][..], true), (&[0xFF, 0][..], true), (&[0xE0, 0][..], false)]
    {
        let mut raw = gateway.dial().await;
        raw.send(&with_will()).await;
        raw.packet().await;
        raw.send(&publish_v5("last", 0, b"")).await;
        raw.send(goodbye).await;
        drop(raw);
        assert_eq!(&*gateway.next_inbound().await.message.topic, "last");
        if with_will_expected {
            let will = gateway.next_inbound().await;
            assert_eq!((&*will.message.topic, &will.message.payload[..]), ("w", &b"gone"[..]));
            assert!(will.ticket.is_none());
        }
    }
    let mut end = gateway.v4("c").await;
    end.send(&publish_v4("end", 0, b"")).await;
    assert_eq!(&*gateway.next_inbound().await.message.topic, "end", "no will after a goodbye");
    gateway.stop().await;
}

#[tokio::test]
async fn a_stop_lets_acknowledgements_out_and_says_goodbye() {
    let mut gateway = Gateway::start().await;
    let mut observer = gateway.subscriber(4, "observer", "w").await;
    let mut raw = gateway.dial().await;
    raw.send(&with_will()).await;
    raw.packet().await;
    raw.send(&publish_v5("t", 1, b"")).await;
    let ticket = gateway.next_inbound().await.ticket.unwrap();
    let start = SystemClock.ticks();
    gateway.shutdown.cancel();
    assert!(observer.closed().await.is_empty());
    ticket.settle(stored(1, 1));
    gateway.durable.send_replace(Lsn(1));
    raw.expect(&[0x40, 2, 0, 1, 0xE0, 1, 0x8B]).await;
    assert!(raw.closed().await.is_empty());
    assert!(gateway.inbound.recv().await.is_none(), "no will, and the engine's channel is closed");
    assert!(since(start) < Duration::from_secs(2));
    gateway.stop().await;
}

#[tokio::test]
async fn a_stop_does_not_wait_for_a_disk_that_does_not_answer() {
    let mut gateway = Gateway::start().await;
    let mut raw = gateway.v5("c").await;
    raw.send(&publish_v5("t", 1, b"")).await;
    let inbound = gateway.next_inbound().await;
    let start = SystemClock.ticks();
    gateway.shutdown.cancel();
    assert_eq!(raw.closed().await, [0xE0, 1, 0x8B]);
    drop(inbound);
    gateway.stop().await;
    assert!(since(start) < Duration::from_secs(3));
}

#[tokio::test]
async fn a_taken_port_is_named_with_the_mend() {
    let gateway = Gateway::start().await;
    let options = config::Broker { listen: gateway.address, ..config::Broker::default() };
    let (sender, _receiver) = tokio::sync::mpsc::channel(1);
    let (_durable, durable) = tokio::sync::watch::channel(Lsn::ZERO);
    let clock = Arc::new(SystemClock);
    let second = tidegate::broker::Broker::bind(&options, sender, durable, clock, Arc::clone(&gateway.metrics)).await;
    let error = second.err().expect("the port is taken").to_string();
    assert!(error.contains(&gateway.address.to_string()) && error.contains("broker.listen"), "{error}");
    gateway.stop().await;
}
