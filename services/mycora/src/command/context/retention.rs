//! `--keep NAME=VALUE`: bounds of what a context keeps of what has ended.

use clap::ValueEnum;
use proto::v1::ContextRetention;
use yaml::duration;

use crate::command::values;

/// A bound of what is kept, as it is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RetentionBound {
    /// Time for which an ended flow is kept.
    EndedFlowKeepSecs,
    /// Ended flows.
    EndedFlowsMax,
    /// Bytes of ended flows.
    EndedFlowBytesMax,
    /// Time for which a finished message is kept.
    MessageKeepSecs,
    /// Finished messages.
    MessagesDoneMax,
    /// Time for which events are kept.
    EventsKeepSecs,
}

impl RetentionBound {
    /// Sets it; 0 leaves it at the coordinator's.
    pub(super) fn set(self, retention: &mut ContextRetention, value: u64) {
        *match self {
            Self::EndedFlowKeepSecs => &mut retention.ended_flow_keep_secs,
            Self::EndedFlowsMax => &mut retention.ended_flows_max,
            Self::EndedFlowBytesMax => &mut retention.ended_flow_bytes_max,
            Self::MessageKeepSecs => &mut retention.message_keep_secs,
            Self::MessagesDoneMax => &mut retention.messages_done_max,
            Self::EventsKeepSecs => &mut retention.events_keep_secs,
        } = value;
    }

    fn value(self, text: &str) -> Option<u64> {
        match self {
            Self::EndedFlowKeepSecs | Self::MessageKeepSecs | Self::EventsKeepSecs => {
                text.parse().ok().or_else(|| Some(duration(text)?.as_secs()))
            }
            Self::EndedFlowBytesMax => bytes(text),
            Self::EndedFlowsMax | Self::MessagesDoneMax => text.parse().ok(),
        }
    }
}

/// Reads `ended-flows-max=1000`, `ended-flow-keep-secs=7d` or `ended-flow-bytes-max=512MiB`.
pub(super) fn bound(text: &str) -> Result<(RetentionBound, u64), String> {
    let (name, value) = values::entry(text)?;
    let bound = RetentionBound::from_str(&name.replace('_', "-"), false).map_err(|_| {
        let names = RetentionBound::value_variants().iter().filter_map(ValueEnum::to_possible_value);
        let names: Vec<_> = names.map(|value| value.get_name().to_owned()).collect();
        format!("there are {}", names.join(", "))
    })?;
    let value = bound.value(&value).ok_or_else(|| {
        "write a number, a time as 90s, 15m, 2h or 7d, or bytes as 512MiB or 2GiB; 0 leaves the bound at the coordinator's"
            .to_owned()
    })?;
    Ok((bound, value))
}

/// Reads a number of bytes: `1048576`, `512KiB`, `512MiB` or `2GiB`.
fn bytes(text: &str) -> Option<u64> {
    let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
    let unit = units.into_iter().find_map(|(name, bytes)| Some((text.strip_suffix(name)?, bytes)));
    let (number, bytes) = unit.unwrap_or((text, 1_u64));
    number.trim().parse::<u64>().ok()?.checked_mul(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_numbers_times_and_bytes() {
        assert_eq!(bound("ended-flows-max=1000"), Ok((RetentionBound::EndedFlowsMax, 1000)));
        assert_eq!(bound("ended_flow_keep_secs=7d"), Ok((RetentionBound::EndedFlowKeepSecs, 604_800)));
        assert_eq!(bound("events-keep-secs=0"), Ok((RetentionBound::EventsKeepSecs, 0)));
        assert_eq!(bound("ended-flow-bytes-max=2GiB"), Ok((RetentionBound::EndedFlowBytesMax, 2 << 30)));
        for wrong in [
            "ended-flows-max=7d",
            "ended-flows-max",
            "flows=1",
            "ended-flow-bytes-max=1TB",
            "message-keep-secs=-1",
        ] {
            assert!(bound(wrong).is_err(), "{wrong}");
        }
        assert!(bound("x=1").is_err_and(|text| text.contains("messages-done-max")));
    }
}
