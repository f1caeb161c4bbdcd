//! Threads with much stack, for scripts. Starting one costs more than many a script, so they are kept for a while.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, ThreadId};
use std::time::{Duration, Instant};

/// The stack of a script's thread. Values may be nested as deep as there may be elements in them, and are copied
/// and dropped level by level. Only what is used of it costs anything.
const STACK_BYTES: usize = 512 * 1024 * 1024;
/// How many threads wait for work, and how long.
const IDLE_MAX: usize = 16;
const IDLE_TIME: Duration = Duration::from_secs(10);
/// A script that took longer may have used much of the stack, which only the end of the thread gives back.
const SHORT: Duration = Duration::from_millis(500);

type Work = Box<dyn FnOnce() + Send>;

/// The threads that wait, each by what takes its work.
static IDLE: Mutex<Vec<(ThreadId, Sender<Work>)>> = Mutex::new(Vec::new());

fn idle() -> MutexGuard<'static, Vec<(ThreadId, Sender<Work>)>> {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does something on such a thread.
///
/// # Errors
/// When none can be started.
pub(super) fn run(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let work: Work = Box::new(work);
    let waiting = idle().pop();
    match waiting {
        // It has left the list only by this, so it still waits.
        Some((_, thread)) => thread.send(work).map_err(|_| io::ErrorKind::BrokenPipe.into()),
        None => Builder::new()
            .name("script".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || serve(work))
            .map(drop),
    }
}

fn serve(first: Work) {
    let (sender, receiver) = channel();
    let mut work = first;
    loop {
        let begin = Instant::now();
        work();
        if begin.elapsed() > SHORT || !join(&sender) {
            return;
        }
        match next(&receiver) {
            Some(more) => work = more,
            None => return,
        }
    }
}

/// Joins those that wait, unless they are enough.
fn join(sender: &Sender<Work>) -> bool {
    let mut idle = idle();
    let is_wanted = idle.len() < IDLE_MAX;
    if is_wanted {
        idle.push((std::thread::current().id(), sender.clone()));
    }
    is_wanted
}

fn next(receiver: &Receiver<Work>) -> Option<Work> {
    match receiver.recv_timeout(IDLE_TIME) {
        Ok(work) => Some(work),
        Err(RecvTimeoutError::Disconnected) => None,
        Err(RecvTimeoutError::Timeout) => {
            let own = std::thread::current().id();
            let mut idle = idle();
            let place = idle.iter().position(|(thread, _)| *thread == own);
            match place {
                Some(place) => {
                    idle.remove(place);
                    None
                }
                // Somebody took it from the list just now, and its work is on the way.
                None => {
                    drop(idle);
                    receiver.recv().ok()
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_at_once_and_one_after_the_other() {
        let (sender, done) = channel();
        for round in 0..3 {
            for n in 0..IDLE_MAX + 4 {
                let sender = sender.clone();
                run(move || sender.send((round, n)).expect("somebody listens")).expect("a thread");
            }
            let mut seen: Vec<_> = done.iter().take(IDLE_MAX + 4).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..IDLE_MAX + 4).map(|n| (round, n)).collect::<Vec<_>>());
        }
        assert!(idle().len() <= IDLE_MAX);
    }

    #[test]
    fn there_is_much_stack() {
        fn down(levels: u32) -> u64 {
            let room = std::hint::black_box([u64::from(levels); 1024]);
            if levels == 0 { room[7] } else { room[3] - room[4] + down(levels - 1) }
        }
        let (sender, done) = channel();
        run(move || sender.send(down(20_000)).expect("somebody listens")).expect("a thread");
        assert_eq!(done.recv(), Ok(0));
    }
}
