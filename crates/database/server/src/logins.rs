//! The places of connections: of those that are logging in, and of sessions.
//!
//! *Invariant*: a connection that has not logged in holds no place of a session. Unfinished logins have places of their
//! own. When these are full, a new connection displaces the oldest one of the address that has most of them: who opens
//! connections and says nothing displaces itself, and others that log in at that address have as long as it takes to
//! fill all places anew. Sessions are found again by their user, so that those of a user who was removed or changed
//! end.
//!
//! Of the places of sessions, where there are users, the last tenth is for users that have fewer than [`FEW`], and the
//! last [`FOR_DEFINERS`] are for those who may define: no user keeps others out by taking all.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use crate::backoff::machine;
use crate::rights::Right;
use crate::users::Login;

/// Sessions of a user that has few.
const FEW: usize = 3;
/// Places that only users who may define get, of a server that has some.
const FOR_DEFINERS: usize = 3;

/// Why a login that was right gets no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// There are as many as there may be.
    All,
    /// The places that are left are for users with fewer sessions, or for those who may define.
    Reserved,
    /// Others have displaced it before it was over.
    Displaced,
}

impl Full {
    pub(crate) fn message(self) -> &'static str {
        match self {
            Self::All => "there are too many connections",
            Self::Reserved => {
                "there are too many connections of this user: those that are left are reserved for others"
            }
            Self::Displaced => "there are too many logins at a time",
        }
    }
}

/// A login that is not over.
struct Pending {
    address: IpAddr,
    task: Option<AbortHandle>,
    end: oneshot::Sender<()>,
}

struct Member {
    user: String,
    login: Option<Login>,
    end: Option<oneshot::Sender<()>>,
}

#[derive(Default)]
struct Inner {
    next: u64,
    pending: HashMap<u64, Pending>,
    /// Those of each machine, the oldest first.
    machines: HashMap<IpAddr, BTreeSet<u64>>,
    sessions: HashMap<u64, Member>,
    users: HashMap<String, usize>,
    /// Sessions have begun since it was last looked at whether their users are as they were.
    has_new: bool,
}

/// All connections.
pub(crate) struct Logins {
    inner: Mutex<Inner>,
    places: usize,
    max_pending: usize,
}

/// A connection's place, for as long as it is there.
pub(crate) struct Entry {
    logins: Arc<Logins>,
    id: u64,
}

impl Inner {
    fn take_pending(&mut self, id: u64) -> Option<Pending> {
        let pending = self.pending.remove(&id)?;
        if let Some(all) = self.machines.get_mut(&pending.address) {
            all.remove(&id);
            if all.is_empty() {
                self.machines.remove(&pending.address);
            }
        }
        Some(pending)
    }

    /// Ends the oldest unfinished login of the machine that has most; whether there was one.
    fn displace(&mut self) -> bool {
        let most = self.machines.values().max_by_key(|all| (all.len(), std::cmp::Reverse(all.first().copied())));
        let Some(oldest) = most.and_then(|all| all.first().copied()) else { return false };
        if let Some(task) = self.take_pending(oldest).and_then(|pending| pending.task) {
            task.abort();
        }
        true
    }
}

impl Logins {
    /// `places` for sessions, and `max_pending` for logins that are not over.
    pub(crate) fn new(places: usize, max_pending: usize) -> Self {
        Self { inner: Mutex::default(), places, max_pending }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Nothing here panics in the middle of a change.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a connection that has come, what tells it that its user was changed, and whether it has displaced
    /// another one.
    pub(crate) fn enter(self: &Arc<Self>, address: IpAddr) -> (Entry, oneshot::Receiver<()>, bool) {
        let (end, ended) = oneshot::channel();
        let address = machine(address);
        let mut inner = self.inner();
        let has_displaced = inner.pending.len() >= self.max_pending && inner.displace();
        let id = inner.next;
        inner.next += 1;
        inner.pending.insert(id, Pending { address, task: None, end });
        inner.machines.entry(address).or_default().insert(id);
        (Entry { logins: self.clone(), id }, ended, has_displaced)
    }

    /// The task of a connection: it is ended when the connection is displaced.
    pub(crate) fn started(&self, id: u64, task: AbortHandle) {
        if let Some(pending) = self.inner().pending.get_mut(&id) {
            pending.task = Some(task);
        }
    }

    /// Makes room when the system has none; whether there was a login to give way.
    pub(crate) fn displace(&self) -> bool {
        self.inner().displace()
    }

    /// Whether sessions have begun since it was asked for the last time.
    pub(crate) fn has_new(&self) -> bool {
        std::mem::take(&mut self.inner().has_new)
    }

    /// Ends the sessions of users whose lines in the file have changed or gone; their numbers and users.
    pub(crate) fn end_changed(&self, now: &HashMap<String, Login>) -> Vec<(u64, String)> {
        let mut ended = Vec::new();
        for (id, member) in &mut self.inner().sessions {
            if member.login.is_some_and(|login| now.get(&member.user) != Some(&login))
                && let Some(end) = member.end.take()
            {
                // One that has gone meanwhile is as well.
                _ = end.send(());
                ended.push((*id, member.user.clone()));
            }
        }
        ended
    }
}

impl Entry {
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Takes a session's place, when the login is over: of a user that is in a file, with what the file said of it.
    ///
    /// # Errors
    /// There is none for this user.
    pub(crate) fn seat(&self, user: &str, login: Option<Login>) -> Result<(), Full> {
        let Logins { places, .. } = *self.logins;
        let mut inner = self.logins.inner();
        let left = places.saturating_sub(inner.sessions.len());
        let has = inner.users.get(user).copied().unwrap_or(0);
        let (for_others, for_definers) = (places / 10, (places / 10).min(FOR_DEFINERS));
        let reserved = match login {
            None => 0,
            Some(login) if login.right == Right::Define => 0,
            Some(_) if has < FEW => for_definers,
            Some(_) => for_others,
        };
        if left == 0 {
            return Err(Full::All);
        }
        if left <= reserved {
            return Err(Full::Reserved);
        }
        let pending = inner.take_pending(self.id).ok_or(Full::Displaced)?;
        *inner.users.entry(user.into()).or_default() += 1;
        inner.has_new = true;
        inner.sessions.insert(self.id, Member { user: user.into(), login, end: Some(pending.end) });
        Ok(())
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut inner = self.logins.inner();
        if let Some(Member { user, .. }) = inner.sessions.remove(&self.id) {
            if let Some(has) = inner.users.get_mut(&user) {
                *has -= 1;
                if *has == 0 {
                    inner.users.remove(&user);
                }
            }
        } else {
            inner.take_pending(self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logins(places: usize, max_pending: usize) -> Arc<Logins> {
        Arc::new(Logins::new(places, max_pending))
    }

    fn login(right: Right) -> Option<Login> {
        Some(Login { right, stamp: 7 })
    }

    #[test]
    fn the_oldest_login_of_the_machine_with_most_gives_way() {
        let logins = logins(1, 4);
        let [one, two]: [IpAddr; 2] = ["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()];
        let (first, _first, _) = logins.enter(two);
        let silent: Vec<_> = (0..3).map(|_| logins.enter(one)).collect();
        let (late, _late, has_displaced) = logins.enter(one);
        assert!(has_displaced && logins.inner().pending.len() == 4);
        // Not the one that is there for longest, which is alone.
        assert_eq!(silent[0].0.seat("ann", None), Err(Full::Displaced));
        assert_eq!(first.seat("ann", None), Ok(()));
        assert_eq!(late.seat("ann", None), Err(Full::All));
        drop(first);
        assert_eq!(late.seat("ann", None), Ok(()));
        drop((late, silent));
        let inner = logins.inner();
        assert!(inner.pending.is_empty() && inner.machines.is_empty() && inner.sessions.is_empty());
        assert!(inner.users.is_empty());
    }

    #[test]
    fn no_user_takes_the_places_of_all() {
        let logins = logins(40, 100);
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        let seat = |user: &str, right: Right| {
            let (entry, ..) = logins.enter(address);
            entry.seat(user, login(right)).map(|()| entry)
        };
        let mut all: Vec<Entry> = (0..36).map(|_| seat("greedy", Right::Write).unwrap()).collect();
        assert_eq!(seat("greedy", Right::Write).err(), Some(Full::Reserved));
        all.push(seat("ann", Right::Call).unwrap());
        assert_eq!(seat("bob", Right::Call).err(), Some(Full::Reserved));
        all.extend((0..3).map(|_| seat("admin", Right::Define).unwrap()));
        assert_eq!(seat("admin", Right::Define).err(), Some(Full::All));
        all.pop();
        all.push(seat("admin", Right::Define).unwrap());
        drop(all);
        // A few places are for whoever comes.
        let logins = self::logins(2, 100);
        let entries: Vec<_> = (0..2).map(|_| logins.enter(address).0).collect();
        assert!(entries.iter().all(|entry| entry.seat("ann", login(Right::Call)).is_ok()));
    }

    #[test]
    fn sessions_of_changed_users_are_told() {
        let logins = logins(10, 10);
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        let (ann, mut ann_ended, _) = logins.enter(address);
        let (bob, mut bob_ended, _) = logins.enter(address);
        let (any, mut any_ended, _) = logins.enter(address);
        assert!(!logins.has_new());
        ann.seat("ann", login(Right::Call)).unwrap();
        bob.seat("bob", login(Right::Call)).unwrap();
        any.seat("any", None).unwrap();
        assert!(logins.has_new() && !logins.has_new());
        let mut now = HashMap::from([("ann", Right::Call), ("bob", Right::Call)].map(|(user, right)| {
            let login = Login { right, stamp: 7 };
            (user.to_string(), login)
        }));
        assert!(logins.end_changed(&now).is_empty());
        now.get_mut("ann").unwrap().stamp = 8;
        assert_eq!(logins.end_changed(&now), [(ann.id(), "ann".to_string())]);
        now.remove("bob");
        assert_eq!(logins.end_changed(&now), [(bob.id(), "bob".to_string())]);
        assert!(logins.end_changed(&now).is_empty());
        assert!(ann_ended.try_recv().is_ok() && bob_ended.try_recv().is_ok());
        assert_eq!(any_ended.try_recv().map(drop), Err(tokio::sync::oneshot::error::TryRecvError::Empty));
    }
}
