//! A bounded byte buffer between those who log and the thread that writes.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use prometheus::IntCounter;

/// Bytes that may wait for the writing thread: some ten thousand lines, a second of a busy edge.
const CAPACITY_BYTES: usize = 4 << 20;

/// How long the writing thread gathers lines before it writes. Waking it for each line would cost
/// a busy edge more than making the lines does.
const GATHER: Duration = Duration::from_millis(5);

/// A handle that takes whole lines. It never blocks on the reader of the logs.
#[derive(Clone)]
pub(crate) struct LineBuffer {
    shared: Arc<Shared>,
    capacity_bytes: usize,
    dropped: IntCounter,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Signalled when there is something to write, or nothing more to come.
    filled: Condvar,
    /// Signalled when everything taken so far is written.
    emptied: Condvar,
}

#[derive(Default)]
struct State {
    pending: Vec<u8>,
    writing: bool,
    /// Somebody waits for what is pending: gather no longer.
    hurried: bool,
    closed: bool,
}

impl LineBuffer {
    pub(crate) fn new(dropped: IntCounter) -> Self {
        Self::with_capacity(CAPACITY_BYTES, dropped)
    }

    fn with_capacity(capacity_bytes: usize, dropped: IntCounter) -> Self {
        Self { shared: Arc::default(), capacity_bytes, dropped }
    }

    /// Takes one line, or counts it as dropped when the buffer is full or closed.
    pub(crate) fn push(&self, line: &[u8]) {
        let mut state = self.shared.state.lock();
        if state.closed || state.pending.len() + line.len() > self.capacity_bytes {
            drop(state);
            self.dropped.inc();
            return;
        }
        let was_empty = state.pending.is_empty();
        state.pending.extend_from_slice(line);
        drop(state);
        if was_empty {
            self.shared.filled.notify_one();
        }
    }

    /// Writes what is pushed to `out` until the buffer is closed and empty. Runs on its own
    /// thread. Lines that `out` refuses are lost: there is nowhere left to report it.
    pub(crate) fn write_to(&self, mut out: impl Write) {
        let mut batch = Vec::new();
        loop {
            let mut state = self.shared.state.lock();
            state.writing = false;
            while state.pending.is_empty() {
                self.shared.emptied.notify_all();
                if state.closed {
                    return;
                }
                self.shared.filled.wait(&mut state);
            }
            let gathering = |state: &mut State| !state.hurried && !state.closed;
            self.shared.filled.wait_while_for(&mut state, gathering, GATHER);
            state.hurried = false;
            state.writing = true;
            // The two vectors change places, so that neither side allocates in steady state.
            batch.clear();
            std::mem::swap(&mut batch, &mut state.pending);
            drop(state);
            let _ = out.write_all(&batch).and_then(|()| out.flush());
        }
    }

    /// Waits until everything pushed is written, at most `limit`. Whether it was.
    pub(crate) fn flush(&self, limit: Duration) -> bool {
        let mut state = self.shared.state.lock();
        state.hurried = true;
        self.shared.filled.notify_one();
        let busy = |state: &mut State| state.writing || !state.pending.is_empty();
        !self.shared.emptied.wait_while_for(&mut state, busy, limit).timed_out()
    }

    /// Takes no more lines and lets the writing thread end when it is done.
    pub(crate) fn close(&self) {
        self.shared.state.lock().closed = true;
        self.shared.filled.notify_all();
    }
}

impl Write for LineBuffer {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(10);

    fn counter() -> IntCounter {
        IntCounter::new("dropped", "test").unwrap()
    }

    /// A reader that takes nothing until it is told to.
    struct Gate {
        open: mpsc::Receiver<()>,
        out: mpsc::Sender<Vec<u8>>,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.open.recv();
            let _ = self.out.send(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_arrive_whole_and_in_order() {
        let buffer = LineBuffer::new(counter());
        let (send, receive) = mpsc::channel();
        let (open, gate) = mpsc::channel();
        drop(open);
        let writer = buffer.clone();
        let thread = thread::spawn(move || writer.write_to(Gate { open: gate, out: send }));
        for line in 0..100 {
            buffer.push(format!("{line}\n").as_bytes());
        }
        assert!(buffer.flush(LONG));
        buffer.close();
        thread.join().unwrap();
        let written: Vec<u8> = receive.iter().flatten().collect();
        let expected: String = (0..100).map(|line| format!("{line}\n")).collect();
        assert_eq!(String::from_utf8(written).unwrap(), expected);
    }

    #[test]
    fn a_stalled_reader_costs_counted_lines_and_never_blocks() {
        let dropped = counter();
        let buffer = LineBuffer::with_capacity(10, dropped.clone());
        let (send, receive) = mpsc::channel();
        let (open, gate) = mpsc::channel();
        let writer = buffer.clone();
        let thread = thread::spawn(move || writer.write_to(Gate { open: gate, out: send }));
        // At most ten bytes wait and ten are in the writer's hand.
        for _ in 0..10 {
            buffer.push(b"12345");
        }
        assert!((6..=8).contains(&dropped.get()), "{}", dropped.get());
        assert!(!buffer.flush(Duration::from_millis(1)), "the reader has taken nothing");
        drop(open);
        assert!(buffer.flush(LONG));
        buffer.close();
        thread.join().unwrap();
        let written: usize = receive.iter().map(|part| part.len()).sum();
        assert_eq!(written as u64, 50 - 5 * dropped.get());
    }

    #[test]
    fn a_closed_buffer_takes_nothing_more() {
        let dropped = counter();
        let buffer = LineBuffer::new(dropped.clone());
        buffer.close();
        buffer.push(b"late\n");
        assert_eq!(dropped.get(), 1);
    }
}
