//! Public trouble as small inputs: odd client ids, hasty clients, other protocols.

use super::gateway::{Gateway, connect_v4, connect_v5, packet, publish_v4, subscribe, text};
use super::*;

#[tokio::test]
async fn g06_an_empty_client_id() {
    let gateway = Gateway::start().await;
    let mut refused = gateway.dial().await;
    refused.send(b"\x10\x0c\0\x04MQTT\x04\0\0\x3c\0\0").await;
    assert_eq!(refused.closed().await, [0x20, 2, 0, 2]);
    let mut first = gateway.v4("").await;
    let mut second = gateway.v4("").await;
    first.ping().await;
    second.ping().await;
    for flags in [0, 2] {
        let mut raw = gateway.dial().await;
        raw.send(&connect_v5(flags, &[], &[0, 0])).await;
        let connack = raw.packet().await;
        let at = connack.iter().position(|byte| *byte == 0x12).expect("an assigned client identifier");
        let len = usize::from(connack[at + 2]);
        let assigned = std::str::from_utf8(&connack[at + 3..at + 3 + len]).unwrap();
        let mut again = gateway.v5(assigned).await;
        assert_eq!(raw.closed().await, [0xE0, 1, 0x8E]);
        again.ping().await;
    }
    gateway.stop().await;
}

#[tokio::test]
async fn g09_publish_and_hang_up_in_one_segment() {
    let mut gateway = Gateway::start().await;
    for n in 0..100_u8 {
        let mut raw = gateway.dial().await;
        let connect =
            packet(0x10, &[b"\0\x04MQTT\x04\x06\0\x3c", &text("button-3")[..], &text("w"), &text("")].concat());
        let qos = u16::from(n % 2);
        raw.send(&[connect, publish_v4("btn/3", qos, &[n]), vec![0xE0, 0]].concat()).await;
        drop(raw);
    }
    let mut seen = Vec::new();
    for _ in 0..100 {
        let message = gateway.next_inbound().await.message;
        assert_eq!(&*message.topic, "btn/3", "no will");
        seen.push(message.payload[0]);
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..100).collect::<Vec<u8>>());
    gateway.stop().await;
}

#[tokio::test]
async fn g11_other_protocols_and_levels() {
    let gateway = Gateway::start().await;
    for (bytes, answer) in [
        (&b"\x10\x11\0\x04MQTT\x03\x02\0\x3c\0\x05old-1"[..], &[0x20, 2, 0, 1][..]),
        (b"\x10\x13\0\x06MQIsdp\x03\x02\0\x3c\0\x05old-1", &[0x20, 2, 0, 1]),
        (b"\x10\x11\0\x04MQTT\x63\x02\0\x3c\0\x05old-1", &[0x20, 2, 0, 1]),
        (b"\x10\x11\0\x04MQXX\x04\x02\0\x3c\0\x05old-1", &[]),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", &[]),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", &[]),
    ] {
        let mut raw = gateway.dial().await;
        let start = SystemClock.ticks();
        raw.send(bytes).await;
        assert_eq!(raw.closed().await, answer, "{bytes:x?}");
        assert!(since(start) < Duration::from_secs(1));
    }
    gateway.stop().await;
}

#[tokio::test]
async fn g12_everything_in_one_write_is_answered_in_order() {
    let mut gateway = Gateway::start().await;
    let mut raw = gateway.dial().await;
    let burst = [connect_v4("c-fast", 60), subscribe(4, "cmd/#", 1), publish_v4("up/1", 2, b"5")].concat();
    raw.send(&burst).await;
    raw.expect(&[0x20, 2, 0, 0, 0x90, 3, 0, 1, 1]).await;
    let inbound = gateway.next_inbound().await;
    assert_eq!((&*inbound.message.topic, &inbound.message.payload[..]), ("up/1", &b"5"[..]));
    inbound.ticket.unwrap().settle(stored(1, 1));
    gateway.durable.send_replace(Lsn(1));
    raw.expect(&[0x40, 2, 0, 2]).await;
    gateway.stop().await;
}
