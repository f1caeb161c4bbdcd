//! The habits of the real daemon that surprise its clients.

use std::str::FromStr;

/// Which traps are armed. By default all are, as in the real daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traps {
    /// Payloads of more than 1300 bytes whose last piece of 1300 would have 1 to 249 never arrive.
    pub sizes: bool,
    /// No other call is answered while a pop waits.
    pub blocking_pop: bool,
    /// Messages that were not popped or not delivered are gone after a restart.
    pub forgets: bool,
    /// Messages that were not delivered after five minutes are given up.
    pub aborts: bool,
    /// A message counts as received when it is in the receiver's memory, not when it was popped.
    pub received_early: bool,
    /// A reply that comes too late lies among the messages, without a topic.
    pub late_replies: bool,
    /// A reply is taken from anybody.
    pub strangers: bool,
    /// Messages overtake each other.
    pub reorders: bool,
    /// Twenty and more messages that wait for an absent node get stuck permanently when it returns.
    pub loss_on_return: bool,
}

impl Traps {
    /// Traps of the real daemon: all of them.
    pub const ARMED: Self = Self {
        sizes: true,
        blocking_pop: true,
        forgets: true,
        aborts: true,
        received_early: true,
        late_replies: true,
        strangers: true,
        reorders: true,
        loss_on_return: true,
    };
    /// Ideal daemon, without traps.
    pub const NONE: Self = Self {
        sizes: false,
        blocking_pop: false,
        forgets: false,
        aborts: false,
        received_early: false,
        late_replies: false,
        strangers: false,
        reorders: false,
        loss_on_return: false,
    };

    fn place(&mut self, name: &str) -> Option<&mut bool> {
        Some(match name {
            "sizes" => &mut self.sizes,
            "blocking-pop" => &mut self.blocking_pop,
            "forgets" => &mut self.forgets,
            "aborts" => &mut self.aborts,
            "received-early" => &mut self.received_early,
            "late-replies" => &mut self.late_replies,
            "strangers" => &mut self.strangers,
            "reorders" => &mut self.reorders,
            "loss-on-return" => &mut self.loss_on_return,
            _ => return None,
        })
    }
}

impl Default for Traps {
    fn default() -> Self {
        Self::ARMED
    }
}

/// `all`, `none`, or names with commas between them.
impl FromStr for Traps {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self::ARMED),
            "none" => Ok(Self::NONE),
            names => names.split(',').try_fold(Self::NONE, |mut traps, name| {
                *traps.place(name).ok_or_else(|| format!("there is no trap `{name}`"))? = true;
                Ok(traps)
            }),
        }
    }
}
