//! Names of servers, resolved up to a deadline.
//!
//! Owns the threads that ask: the system's resolver waits as long as it likes. Never keeps an answer. Invariant: at
//! most one thread asks for a name at a time, however often it is asked for meanwhile.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Host and port.
type Name = (String, u16);
/// What the resolver says.
type Answer = Result<Vec<SocketAddr>, Unresolved>;
/// Asks the resolver.
type Ask = fn(&str, u16) -> io::Result<Vec<SocketAddr>>;

/// Why a name has no addresses. In words, since several may have asked and an `io::Error` cannot be copied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Unresolved(String);

/// A question under way.
#[derive(Default)]
struct Question {
    answer: Mutex<Option<Answer>>,
    answered: Condvar,
}

static ASKED: Mutex<BTreeMap<Name, Arc<Question>>> = Mutex::new(BTreeMap::new());

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The addresses of a server; `None` if the resolver has not answered by the deadline.
pub(super) fn resolve(host: &str, port: u16, deadline: Instant) -> Option<Answer> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Some(Ok(vec![(address, port).into()]));
    }
    resolve_by(host, port, deadline, |host, port| Ok((host, port).to_socket_addrs()?.collect()))
}

fn resolve_by(host: &str, port: u16, deadline: Instant, ask: Ask) -> Option<Answer> {
    let question = match question(host, port, ask) {
        Ok(question) => question,
        Err(e) => return Some(Err(Unresolved(format!("there can be no thread that asks: {e}")))),
    };
    let left = deadline.saturating_duration_since(Instant::now());
    let waited = question.answered.wait_timeout_while(lock(&question.answer), left, |a| a.is_none());
    waited.unwrap_or_else(PoisonError::into_inner).0.clone()
}

/// The question for a name that is under way, or a new one.
fn question(host: &str, port: u16, ask: Ask) -> io::Result<Arc<Question>> {
    let name: Name = (host.to_owned(), port);
    let mut asked = lock(&ASKED);
    if let Some(question) = asked.get(&name) {
        return Ok(question.clone());
    }
    let question = Arc::new(Question::default());
    asked.insert(name.clone(), question.clone());
    let (its, of) = (question.clone(), name.clone());
    let thread = std::thread::Builder::new().name("nbd-resolve".into()).spawn(move || {
        let answer = ask(&of.0, of.1).map_err(|e| Unresolved(e.to_string()));
        // In this order: whoever asks from now on asks anew.
        lock(&ASKED).remove(&of);
        *lock(&its.answer) = Some(answer);
        its.answered.notify_all();
    });
    if let Err(e) = thread {
        asked.remove(&name);
        return Err(e);
    }
    Ok(question)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    #[test]
    fn a_resolver_that_does_not_answer_is_asked_once_and_not_waited_for() {
        static RELEASED: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());
        static ASKERS: AtomicUsize = AtomicUsize::new(0);
        let silent: Ask = |_, port| {
            ASKERS.fetch_add(1, Ordering::Relaxed);
            let released = RELEASED.1.wait_while(RELEASED.0.lock().unwrap(), |r| !*r);
            drop(released.unwrap());
            Ok(vec![([127, 0, 0, 1], port).into()])
        };
        let in_time = |ms| resolve_by("silent.invalid", 7, Instant::now() + Duration::from_millis(ms), silent);
        assert_eq!((in_time(20), in_time(20)), (None, None));
        std::thread::scope(|s| {
            let waits = s.spawn(|| in_time(60_000));
            *RELEASED.0.lock().unwrap() = true;
            RELEASED.1.notify_all();
            assert_eq!(waits.join().unwrap(), Some(Ok(vec![([127, 0, 0, 1], 7).into()])));
        });
        assert!(ASKERS.load(Ordering::Relaxed) <= 2, "one thread for the three, or a second one after its answer");
    }

    #[test]
    fn an_address_is_its_own_answer() {
        let past = Instant::now();
        for (host, port) in [("127.0.0.1", 1), ("::1", 2)] {
            let address = SocketAddr::new(host.parse().unwrap(), port);
            assert_eq!(resolve(host, port, past), Some(Ok(vec![address])));
        }
    }
}
