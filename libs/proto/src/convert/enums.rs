//! Enumerations. Unknown numbers are no value.

use crate::v1;

macro_rules! two_ways {
    ($to:ident, $from:ident, $model:ty, $wire:ty, { $($variant:ident = $wire_variant:ident),+ $(,)? }) => {
        /// To the wire.
        #[must_use]
        pub const fn $to(value: $model) -> $wire {
            match value { $(<$model>::$variant => <$wire>::$wire_variant),+ }
        }

        /// From the wire; absent for `UNSPECIFIED` and for numbers without a meaning.
        #[must_use]
        pub fn $from(number: i32) -> Option<$model> {
            match <$wire>::try_from(number).ok()? {
                $(<$wire>::$wire_variant => Some(<$model>::$variant),)+
                <$wire>::Unspecified => None,
            }
        }
    };
}

two_ways!(script_type_to_wire, script_type_from_wire, model::ScriptType, v1::ScriptType, {
    Python = Python, Shell = Shell, V = V, Rust = Rust, Rhai = Rhai, Osis = Osis, Sal = Sal,
});
two_ways!(isolation_to_wire, isolation_from_wire, model::Isolation, v1::Isolation, {
    Basic = Basic, Confined = Confined, Contained = Contained,
});
two_ways!(flow_status_to_wire, flow_status_from_wire, model::FlowStatus, v1::FlowStatus, {
    Created = Created, Started = Started, Finished = Finished, Error = Error, Cancelled = Cancelled,
});
two_ways!(node_state_to_wire, node_state_from_wire, model::NodeState, v1::NodeState, {
    Pending = Pending, Ready = Ready, Dispatched = Dispatched, Running = Running,
    Completed = Completed, Failed = Failed, Cancelled = Cancelled, Skipped = Skipped,
});
two_ways!(run_if_to_wire, run_if_from_wire, model::RunIf, v1::RunIf, {
    AllSucceeded = AllSucceeded, NoneFailed = NoneFailed, AllDone = AllDone, AnyFailed = AnyFailed,
});
two_ways!(context_state_to_wire, context_state_from_wire, model::ContextState, v1::ContextState, {
    Active = Active, Deleting = Deleting,
});
two_ways!(message_type_to_wire, message_type_from_wire, model::MessageType, v1::MessageType, {
    Job = Job, Chat = Chat, Mail = Mail,
});
two_ways!(message_format_to_wire, message_format_from_wire, model::MessageFormat, v1::MessageFormat, {
    Html = Html, Text = Text, Md = Md,
});
two_ways!(message_status_to_wire, message_status_from_wire, model::MessageStatus, v1::MessageStatus, {
    Dispatched = Dispatched, Acknowledged = Acknowledged, Processed = Processed, Error = Error,
});
two_ways!(
    transport_status_to_wire, transport_status_from_wire, model::TransportStatus, v1::TransportStatus, {
        Queued = Queued, Sent = Sent, Delivered = Delivered, Read = Read, Failed = Failed,
    }
);
two_ways!(saga_status_to_wire, saga_status_from_wire, model::SagaStatus, v1::SagaStatus, {
    Running = Running, Compensating = Compensating, Stuck = Stuck, Completed = Completed,
    Failed = Failed, Compensated = Compensated, Killed = Killed,
});
two_ways!(effect_state_to_wire, effect_state_from_wire, model::EffectState, v1::EffectState, {
    Accepted = Accepted, Calling = Calling, Backoff = Backoff, Waiting = Waiting, Unknown = Unknown,
    Manual = Manual, Succeeded = Succeeded, Failed = Failed, TimedOut = TimedOut, Cancelled = Cancelled,
});
