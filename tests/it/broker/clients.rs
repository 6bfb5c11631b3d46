//! rumqttc, a client library that is not ours, in both versions.

use std::time::Duration;

use rumqttc::v5;
use tokio::time::timeout;

use super::gateway::Gateway;

const PATIENCE: Duration = Duration::from_secs(10);

/// A message as a client saw it: topic, payload, retain flag, user properties.
type Seen = (String, Vec<u8>, bool, Vec<(String, String)>);

fn v4_client(gateway: &Gateway, id: &str) -> (rumqttc::AsyncClient, rumqttc::EventLoop) {
    let options = rumqttc::MqttOptions::new(id, gateway.address.ip().to_string(), gateway.address.port());
    rumqttc::AsyncClient::new(options, 10)
}

fn v5_client(gateway: &Gateway, id: &str) -> (v5::AsyncClient, v5::EventLoop) {
    let options = v5::MqttOptions::new(id, gateway.address.ip().to_string(), gateway.address.port());
    v5::AsyncClient::new(options, 10)
}

/// Polls until `pick` finds something.
async fn v4_until<T>(events: &mut rumqttc::EventLoop, pick: impl Fn(&rumqttc::Packet) -> Option<T>) -> T {
    let found = async {
        loop {
            if let rumqttc::Event::Incoming(packet) = events.poll().await.expect("a connection")
                && let Some(found) = pick(&packet)
            {
                return found;
            }
        }
    };
    timeout(PATIENCE, found).await.expect("a packet in time")
}

/// Polls until `pick` finds something.
async fn v5_until<T>(events: &mut v5::EventLoop, pick: impl Fn(&v5::mqttbytes::v5::Packet) -> Option<T>) -> T {
    let found = async {
        loop {
            if let v5::Event::Incoming(packet) = events.poll().await.expect("a connection")
                && let Some(found) = pick(&packet)
            {
                return found;
            }
        }
    };
    timeout(PATIENCE, found).await.expect("a packet in time")
}

fn v4_publish(packet: &rumqttc::Packet) -> Option<Seen> {
    let rumqttc::Packet::Publish(publish) = packet else { return None };
    Some((publish.topic.clone(), publish.payload.to_vec(), publish.retain, Vec::new()))
}

fn v5_publish(packet: &v5::mqttbytes::v5::Packet) -> Option<Seen> {
    let v5::mqttbytes::v5::Packet::Publish(publish) = packet else { return None };
    let topic = String::from_utf8(publish.topic.to_vec()).expect("UTF-8");
    let properties = publish.properties.clone().unwrap_or_default();
    Some((topic, publish.payload.to_vec(), publish.retain, properties.user_properties))
}

#[tokio::test]
async fn both_versions_hear_both_versions_and_are_acknowledged() {
    let mut gateway = Gateway::start().await;
    let messages = gateway.run_engine();
    let (four, mut four_events) = v4_client(&gateway, "four");
    let (five, mut five_events) = v5_client(&gateway, "five");
    four.subscribe("to/four/#", rumqttc::QoS::AtLeastOnce).await.unwrap();
    v4_until(&mut four_events, |packet| matches!(packet, rumqttc::Packet::SubAck(_)).then_some(())).await;
    five.subscribe("to/five/#", v5::mqttbytes::QoS::AtLeastOnce).await.unwrap();
    v5_until(&mut five_events, |packet| matches!(packet, v5::mqttbytes::v5::Packet::SubAck(_)).then_some(())).await;

    // Properties of MQTT 5 reach MQTT 5 and do no harm to 3.1.1.
    let properties = v5::mqttbytes::v5::PublishProperties {
        user_properties: vec![("unit".to_owned(), "Cel".to_owned())],
        content_type: Some("text/plain".to_owned()),
        message_expiry_interval: Some(60),
        ..Default::default()
    };
    for topic in ["to/four/a", "to/five/a"] {
        let qos = v5::mqttbytes::QoS::AtLeastOnce;
        five.publish_with_properties(topic, qos, false, "21", properties.clone()).await.unwrap();
    }
    let pair = vec![("unit".to_owned(), "Cel".to_owned())];
    let own = v5_until(&mut five_events, v5_publish).await;
    assert_eq!(own, ("to/five/a".to_owned(), b"21".to_vec(), false, pair));
    let stripped = v4_until(&mut four_events, v4_publish).await;
    assert_eq!(stripped, ("to/four/a".to_owned(), b"21".to_vec(), false, Vec::new()));

    four.publish("to/five/b", rumqttc::QoS::AtLeastOnce, false, "22").await.unwrap();
    v4_until(&mut four_events, |packet| matches!(packet, rumqttc::Packet::PubAck(_)).then_some(())).await;
    let heard = v5_until(&mut five_events, v5_publish).await;
    assert_eq!((heard.0.as_str(), &heard.1[..]), ("to/five/b", &b"22"[..]));
    let topics: Vec<_> = messages.lock().unwrap().iter().map(|message| message.topic.to_string()).collect();
    assert_eq!(topics, ["to/four/a", "to/five/a", "to/five/b"]);
    gateway.stop().await;
}

#[tokio::test]
async fn a_retained_value_waits_for_both_versions_until_it_is_deleted() {
    let mut gateway = Gateway::start().await;
    gateway.run_engine();
    let (sender, mut sender_events) = v4_client(&gateway, "sender");
    for payload in ["1", "2"] {
        sender.publish("r/a", rumqttc::QoS::AtLeastOnce, true, payload).await.unwrap();
        v4_until(&mut sender_events, |packet| matches!(packet, rumqttc::Packet::PubAck(_)).then_some(())).await;
    }
    let (four, mut four_events) = v4_client(&gateway, "four");
    four.subscribe("r/+", rumqttc::QoS::AtMostOnce).await.unwrap();
    let expected = ("r/a".to_owned(), b"2".to_vec(), true, Vec::new());
    assert_eq!(v4_until(&mut four_events, v4_publish).await, expected);
    let (five, mut five_events) = v5_client(&gateway, "five");
    five.subscribe("r/#", v5::mqttbytes::QoS::AtLeastOnce).await.unwrap();
    assert_eq!(v5_until(&mut five_events, v5_publish).await, expected);

    // An empty message that is not retained deletes nothing; one that is, does.
    for (retain, held) in [(false, 1.0), (true, 0.0)] {
        sender.publish("r/a", rumqttc::QoS::AtLeastOnce, retain, "").await.unwrap();
        v4_until(&mut sender_events, |packet| matches!(packet, rumqttc::Packet::PubAck(_)).then_some(())).await;
        assert_eq!(gateway.sample("tidegate_mqtt_retained"), Some(held));
    }
    gateway.stop().await;
}
