//! The protocol of one connection, without its socket: bytes in, bytes out, publishes for the engine.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rumqttd::protocol::{
    Filter, Packet, PubAckReason, Publish, PublishProperties, QoS as WireQoS, RetainForwardRule, Subscribe,
    SubscribeReasonCode, UnsubAckReason, Unsubscribe,
};
use tokio::sync::OwnedSemaphorePermit;
use tracing::debug;

use super::acks::{Answer, Board, Outcome};
use super::cause::Cause;
use super::frame::{self, Checked, Header, Version};
use super::hub::Hub;
use super::outbound::{Delivery, Outgoing, Window};
use super::retained::{Next, Replay};
use super::session::Session;
use super::tree::Grant;
use super::{Inbound, Verdict, codec, topic};
use crate::model::{Lsn, QoS};
use crate::runtime::metrics::Reason;

/// Packets taken, and deliveries made, before other tasks get their turn.
const BATCH_MAX: usize = 64;

/// Bytes that wait for the socket before nothing more is read or fed; a single packet may go beyond.
const OUT_BYTES: usize = 32 << 10;

/// Publishes that wait for room in the engine's channel before nothing more is read.
const PENDING_MAX: usize = 64;

/// Beyond `inflight_max` an MQTT 3.1.1 client is not read so long. A disk that has not answered by then does not keep
/// its readings from the rules, nor its pings from their answer.
pub(super) const CROWD_MAX: Duration = Duration::from_secs(1);

/// Publishes of one client that wait for their acknowledgement: there are no more packet ids.
const UNANSWERED_MAX: usize = u16::MAX as usize;

/// What CONNECT settled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Profile {
    /// Protocol version.
    pub(super) version: Version,
    /// One and a half keep-alive times; none without keep-alive.
    pub(super) silence_max: Option<Duration>,
    /// The client wants the Seq of each acknowledged publish.
    pub(super) receipts: bool,
    /// Largest packet that the client takes.
    pub(super) packet_bytes_max: usize,
    /// QoS 1 deliveries that the client lets be under way.
    pub(super) receive_max: u16,
    /// Session Expiry Interval that the client asked for.
    pub(super) session_expiry: u32,
}

/// Why a connection is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The client said DISCONNECT.
    Left {
        /// With a reason that lets the will be published.
        with_will: bool,
    },
    /// The socket closed.
    Lost,
    /// The gateway ends it.
    Caused(Cause),
}

impl From<Cause> for End {
    fn from(cause: Cause) -> Self {
        Self::Caused(cause)
    }
}

/// How taking packets stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// There is no whole packet left.
    All,
    /// Others get their turn; there may be more.
    Batch,
    /// Something must move first: the socket, the engine, an acknowledgement.
    Blocked,
}

/// One connection's protocol state. Dropping it ends its subscriptions and frees its client id.
pub(super) struct Conversation {
    hub: Arc<Hub>,
    /// What others see of it.
    pub(super) session: Arc<Session>,
    /// What CONNECT settled.
    pub(super) profile: Profile,
    /// Bytes for the socket.
    pub(super) out: BytesMut,
    board: Arc<Board>,
    window: Window,
    filters: HashSet<String>,
    replays: VecDeque<(Replay, Grant)>,
    pending: VecDeque<Inbound>,
    pending_bytes: usize,
    /// The durable position as it was seen last.
    durable: Lsn,
    /// The durable position before any of the publishes that wait for their acknowledgement was read.
    before: Lsn,
    /// `before`, as it was when a publish was refused without a word.
    unstored: Option<Lsn>,
    /// Places among all that wait for an acknowledgement beyond their client's `inflight_max`.
    beyond: Option<OwnedSemaphorePermit>,
}

impl Conversation {
    /// Starts behind CONNECT.
    pub(super) fn new(hub: Arc<Hub>, session: Arc<Session>, profile: Profile) -> Self {
        hub.metrics.connections.inc();
        let board = Arc::new(Board::new(Arc::clone(&session.wake)));
        let window = Window::new(profile.receive_max);
        Self {
            hub,
            session,
            profile,
            out: BytesMut::new(),
            board,
            window,
            filters: HashSet::new(),
            replays: VecDeque::new(),
            pending: VecDeque::new(),
            pending_bytes: 0,
            durable: Lsn::ZERO,
            before: Lsn::ZERO,
            unstored: None,
            beyond: None,
        }
    }

    /// Takes packets from `input`; `now` is `Clock::ticks`. When the peer is gone, only the engine can block.
    pub(super) fn take(&mut self, input: &mut BytesMut, now: Duration, peer_gone: bool) -> Result<Taken, End> {
        for _ in 0..BATCH_MAX {
            if self.is_blocked(peer_gone, now) {
                return Ok(Taken::Blocked);
            }
            let Some(header) = Header::read(input)? else { return Ok(Taken::All) };
            if header.len > self.hub.packet_bytes_max() {
                return Err(Cause::PacketTooLarge.into());
            }
            if input.len() < header.len {
                return Ok(Taken::All);
            }
            let frame = input.split_to(header.len);
            if self.packet(header, frame, now)? {
                break;
            }
        }
        Ok(Taken::Batch)
    }

    /// Writes the acknowledgements that are due.
    pub(super) fn acknowledge(&mut self, durable: Lsn, now: Duration) {
        self.durable = durable;
        while let Some(answer) = self.board.release(durable) {
            self.answer(answer, now);
        }
        if self.beyond.is_some() && !self.is_crowd() {
            self.beyond = None;
        }
    }

    /// Writes deliveries while there is room; true if there may be more to do at once.
    pub(super) fn feed(&mut self) -> bool {
        for _ in 0..BATCH_MAX {
            if self.out.len() >= OUT_BYTES {
                return false;
            }
            // In turns: a large replay does not starve live messages, a flood does not starve the replay.
            let replayed = self.feed_retained();
            let delivered = self.feed_live();
            if !replayed && !delivered {
                return false;
            }
        }
        true
    }

    /// True while publishes wait for their acknowledgement.
    pub(super) fn awaits_acks(&self) -> bool {
        self.board.len() > 0
    }

    /// True while a move of the durable position may let something go on.
    pub(super) fn awaits_commit(&self) -> bool {
        self.awaits_acks() || self.unstored.is_some()
    }

    /// True if a publish was refused without a word and something has been stored since: then there is room again, and
    /// the client has to come back to send it once more. Many clients stop for good with too many that are unanswered.
    pub(super) fn has_to_come_back(&self) -> bool {
        self.unstored.is_some_and(|before| before < self.durable)
    }

    /// True while publishes wait for the engine.
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The next publish for the engine.
    pub(super) fn pop_pending(&mut self) -> Option<Inbound> {
        let inbound = self.pending.pop_front()?;
        self.pending_bytes -= inbound.message.payload.len();
        Some(inbound)
    }

    /// Routes the will, unless somebody else has taken it, and queues it for the engine.
    pub(super) fn publish_will(&mut self) {
        if let Some(will) = self.session.take_will() {
            self.hub.publish(&will);
            self.pend(&will, self.hub.clock.ticks(), None);
        }
    }

    /// True while nothing may be taken.
    pub(super) fn is_blocked(&self, peer_gone: bool, now: Duration) -> bool {
        let engine = self.pending.len() >= PENDING_MAX || self.pending_bytes >= self.hub.packet_bytes_max();
        // MQTT 5 clients know the limit and are told when they break it; 3.1.1 clients are just not read.
        let crowd = self.profile.version == Version::V4 && self.is_crowd() && !self.may_go_beyond(now);
        engine || (!peer_gone && (crowd || self.out.len() >= OUT_BYTES))
    }

    fn is_crowd(&self) -> bool {
        self.board.len() >= usize::from(self.inflight_max())
    }

    fn may_go_beyond(&self, now: Duration) -> bool {
        let is_stale = self.board.oldest().is_some_and(|oldest| now.saturating_sub(oldest) >= CROWD_MAX);
        is_stale && self.board.len() < UNANSWERED_MAX && self.hub.beyond.available_permits() > 0
    }

    /// Takes a place beyond `inflight_max` for the publish that comes.
    fn go_beyond(&mut self) {
        let Ok(place) = Arc::clone(&self.hub.beyond).try_acquire_owned() else { return };
        match &mut self.beyond {
            Some(places) => places.merge(place),
            None => self.beyond = Some(place),
        }
    }

    fn inflight_max(&self) -> u16 {
        self.hub.options.inflight_max.max(1)
    }

    /// Takes one packet; true if others had better run now.
    fn packet(&mut self, header: Header, frame: BytesMut, now: Duration) -> Result<bool, End> {
        let version = self.profile.version;
        match frame::check(version, header, &frame)? {
            Checked::Publish { qos, pkid } => {
                let Packet::Publish(publish, properties) = codec::decode(version, frame)? else {
                    return Err(Cause::Malformed.into());
                };
                return Ok(self.publish(&publish, properties, (qos, pkid), now)?);
            }
            Checked::Subscribe => {
                let Packet::Subscribe(subscribe, _) = codec::decode(version, frame)? else {
                    return Err(Cause::Malformed.into());
                };
                self.subscribe(subscribe);
            }
            Checked::Unsubscribe => {
                let Packet::Unsubscribe(unsubscribe, _) = codec::decode(version, frame)? else {
                    return Err(Cause::Malformed.into());
                };
                self.unsubscribe(unsubscribe);
            }
            Checked::PubAck { pkid } => {
                if !self.window.acknowledge(pkid) {
                    debug!(client = %self.session.client, pkid, "an acknowledgement of nothing is ignored");
                }
            }
            Checked::PingReq => codec::pingresp(version, &mut self.out),
            Checked::Disconnect { session_expiry, .. } if session_expiry > 0 && self.profile.session_expiry == 0 => {
                return Err(Cause::Protocol.into());
            }
            Checked::Disconnect { with_will, .. } => return Err(End::Left { with_will }),
        }
        Ok(false)
    }

    fn publish(
        &mut self,
        publish: &Publish,
        properties: Option<PublishProperties>,
        (qos, pkid): (QoS, u16),
        now: Duration,
    ) -> Result<bool, Cause> {
        let topic = std::str::from_utf8(&publish.topic).map_err(|_| Cause::Malformed)?;
        let is_told = self.profile.version == Version::V5;
        if is_told && qos == QoS::AtLeastOnce && self.board.len() >= usize::from(self.inflight_max()) {
            return Err(Cause::ReceiveMaximum);
        }
        if topic::is_reserved(topic) {
            return self.refuse_topic(topic, qos, pkid, now).map(|()| false);
        }
        self.hub.metrics.publishes.inc();
        let delivery = Arc::new(Delivery {
            topic: topic.into(),
            // A copy: a slice would keep the whole read buffer alive for as long as somebody keeps the payload.
            payload: Bytes::copy_from_slice(&publish.payload),
            qos,
            retain: publish.retain,
            origin: Some(self.session.id),
            bytes: publish.topic.len() + publish.payload.len() + properties_bytes(properties.as_ref()),
            properties,
        });
        let is_crowded = self.hub.publish(&delivery);
        self.pend(&delivery, now, (qos == QoS::AtLeastOnce).then_some(pkid));
        Ok(is_crowded)
    }

    /// MQTT 3.1.1 has no way to say no but to close.
    fn refuse_topic(&mut self, topic: &str, qos: QoS, pkid: u16, now: Duration) -> Result<(), Cause> {
        self.hub.metrics.refused.get_or_create(&Reason { reason: "reserved_topic" }).inc();
        debug!(client = %self.session.client, topic, "a publish to a topic of the gateway is refused");
        if self.profile.version == Version::V4 {
            return Err(Cause::NotAuthorized);
        }
        if qos == QoS::AtLeastOnce {
            self.board.refuse(pkid, now);
        }
        Ok(())
    }

    fn pend(&mut self, delivery: &Delivery, received: Duration, pkid: Option<u16>) {
        let message = delivery.message(&self.session.client);
        if !self.awaits_acks() {
            self.before = self.durable;
        }
        if pkid.is_some() && self.is_crowd() {
            self.go_beyond();
        }
        let ticket = pkid.map(|pkid| self.board.open(pkid, received));
        self.pending_bytes += message.payload.len();
        self.pending.push_back(Inbound { message, received, ticket });
    }

    fn answer(&mut self, answer: Answer, now: Duration) {
        let Answer { pkid, received, outcome } = answer;
        let (reason, seq) = match outcome {
            Outcome::Engine(Verdict::Stored { seq, .. }) => (PubAckReason::Success, seq),
            Outcome::Engine(Verdict::Declined) if self.profile.version == Version::V4 => (PubAckReason::Success, None),
            Outcome::Engine(Verdict::Declined | Verdict::Refused) => (PubAckReason::QuotaExceeded, None),
            Outcome::NotAuthorized => (PubAckReason::NotAuthorized, None),
        };
        if reason == PubAckReason::Success {
            self.hub.metrics.ack_latency.observe(now.saturating_sub(received).as_secs_f64());
        } else if self.profile.version == Version::V4 {
            debug!(client = %self.session.client, pkid, "a refused publish is not acknowledged");
            self.unstored.get_or_insert(self.before);
            return;
        }
        let receipt = seq.filter(|_| self.profile.receipts).map(|seq| seq.0);
        let start = self.out.len();
        codec::puback(self.profile.version, pkid, reason, receipt, &mut self.out);
        if self.out.len() - start > self.profile.packet_bytes_max {
            self.out.truncate(start);
            codec::puback(self.profile.version, pkid, reason, None, &mut self.out);
        }
    }

    fn subscribe(&mut self, subscribe: Subscribe) {
        let codes = subscribe.filters.into_iter().map(|filter| self.subscribe_one(filter)).collect();
        codec::suback(self.profile.version, subscribe.pkid, codes, &mut self.out);
    }

    fn subscribe_one(&mut self, filter: Filter) -> SubscribeReasonCode {
        if topic::is_shared(&filter.path) {
            return SubscribeReasonCode::SharedSubscriptionsNotSupported;
        }
        if topic::is_too_deep(&filter.path) {
            return SubscribeReasonCode::TopicFilterInvalid;
        }
        if !self.filters.contains(&filter.path) && self.filters.len() >= self.hub.options.subscriptions_max {
            return SubscribeReasonCode::QuotaExceeded;
        }
        let (qos, granted) = match filter.qos {
            WireQoS::AtMostOnce => (QoS::AtMostOnce, WireQoS::AtMostOnce),
            WireQoS::AtLeastOnce | WireQoS::ExactlyOnce => (QoS::AtLeastOnce, WireQoS::AtLeastOnce),
        };
        let grant = Grant { qos, no_local: filter.nolocal, retain_as_published: filter.preserve_retain };
        let is_new = self.hub.subscribe(&filter.path, &self.session, grant);
        let replays = match filter.retain_forward_rule {
            RetainForwardRule::OnEverySubscribe => true,
            RetainForwardRule::OnNewSubscribe => is_new,
            RetainForwardRule::Never => false,
        };
        if replays {
            self.replays.retain(|(replay, _)| replay.filter != filter.path);
            self.replays.push_back((self.hub.replay(&filter.path), grant));
        }
        self.filters.insert(filter.path);
        SubscribeReasonCode::Success(granted)
    }

    fn unsubscribe(&mut self, unsubscribe: Unsubscribe) {
        let one = |filter: String| {
            if !self.filters.remove(&filter) {
                return UnsubAckReason::NoSubscriptionExisted;
            }
            self.hub.unsubscribe(&filter, &self.session);
            self.replays.retain(|(replay, _)| replay.filter != filter);
            UnsubAckReason::Success
        };
        let reasons = unsubscribe.filters.into_iter().map(one).collect();
        codec::unsuback(self.profile.version, unsubscribe.pkid, reasons, &mut self.out);
    }

    /// One step of the oldest replay; false if there is none, or if it has to wait.
    fn feed_retained(&mut self) -> bool {
        let Some((replay, grant)) = self.replays.front_mut() else { return false };
        match self.hub.next_retained(replay) {
            Next::Found(topic, delivery) => {
                let qos = delivery.qos.min(grant.qos);
                if qos != QoS::AtMostOnce && !self.window.is_open() {
                    return false;
                }
                replay.advance(topic);
                self.deliver(&Outgoing { delivery, qos, retain: true });
            }
            Next::Later(topic) => replay.advance(topic),
            Next::Done => drop(self.replays.pop_front()),
        }
        true
    }

    fn feed_live(&mut self) -> bool {
        let next = self.session.outbound.pop(self.window.is_open());
        if let Some(outgoing) = &next {
            self.deliver(outgoing);
        }
        next.is_some()
    }

    /// Writes a delivery; the window is open if it is one of QoS 1.
    fn deliver(&mut self, outgoing: &Outgoing) {
        let pkid = match outgoing.qos {
            QoS::AtMostOnce => 0,
            _ => self.window.take().unwrap_or_default(),
        };
        let start = self.out.len();
        codec::publish(self.profile.version, outgoing, pkid, &mut self.out);
        if self.out.len() - start > self.profile.packet_bytes_max {
            self.out.truncate(start);
            self.window.acknowledge(pkid);
            self.hub.count_dropped("packet_too_large");
        } else {
            self.hub.metrics.deliveries.inc();
        }
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        for filter in self.filters.drain() {
            self.hub.unsubscribe(&filter, &self.session);
        }
        self.hub.leave(&self.session);
        self.hub.metrics.connections.dec();
    }
}

/// Bytes that MQTT 5 properties hold in RAM, about.
pub(super) fn properties_bytes(properties: Option<&PublishProperties>) -> usize {
    let Some(properties) = properties else { return 0 };
    let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let pair = |(name, value): &(String, String)| name.len() + value.len() + 2 * size_of::<String>();
    size_of::<PublishProperties>()
        + text(&properties.response_topic)
        + text(&properties.content_type)
        + properties.correlation_data.as_ref().map_or(0, Bytes::len)
        + properties.user_properties.iter().map(pair).sum::<usize>()
}

#[cfg(test)]
#[path = "conversation_tests.rs"]
mod tests;
