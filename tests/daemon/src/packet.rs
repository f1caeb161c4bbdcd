//! Packets that nodes exchange.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Eight bytes, as hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct MessageId(pub(crate) [u8; 8]);

impl MessageId {
    pub(crate) fn random() -> Self {
        Self(rand::random())
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 8];
        hex::decode_to_slice(text, &mut bytes).ok()?;
        Some(Self(bytes))
    }

    pub(crate) fn text(self) -> String {
        hex::encode(self.0)
    }
}

/// Something on its way.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Packet {
    /// The key of its sender, which the overlay guarantees.
    pub(crate) from: [u8; 32],
    pub(crate) to: IpAddr,
    /// How many nodes may still pass it on.
    pub(crate) hops: u8,
    pub(crate) what: What,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum What {
    /// A whole message.
    Message(Message),
    /// Receipt: the message is in the memory of the other end.
    Received(MessageId),
    /// A part of it came, the rest never will.
    Stuck(MessageId),
    /// Receipt: the message has been popped, or looked at.
    Read(MessageId),
    /// A probe of the peer. It also stands for packets that pile up while the peer is absent.
    Knock,
    /// Answer to a knock.
    Here,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Message {
    pub(crate) id: MessageId,
    pub(crate) is_reply: bool,
    #[serde(serialize_with = "write", deserialize_with = "read")]
    pub(crate) topic: Bytes,
    #[serde(serialize_with = "write", deserialize_with = "read")]
    pub(crate) payload: Bytes,
}

fn write<S: Serializer>(bytes: &Bytes, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&STANDARD.encode(bytes))
}

fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
    let text = String::deserialize(from)?;
    STANDARD.decode(text).map(Bytes::from).map_err(serde::de::Error::custom)
}
