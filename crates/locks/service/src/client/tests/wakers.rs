//! Wakers that do at once what executors usually put off: drop the task, or poll it.

use super::*;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::task::Wake;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Polls its task in the call that wakes it.
struct Inline {
    task: Mutex<Option<Task>>,
    woken: AtomicBool,
}

impl Inline {
    fn start(task: Task) {
        let inline = Self { task: Mutex::new(Some(task)), woken: AtomicBool::new(false) };
        Arc::new(inline).wake();
    }
}

impl Wake for Inline {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        while self.woken.swap(false, Ordering::SeqCst) {
            // Who polls it just now looks again afterwards.
            let Some(mut task) = self.task.lock().unwrap().take() else {
                self.woken.store(true, Ordering::SeqCst);
                match self.task.lock().unwrap().is_some() {
                    true => continue,
                    false => return,
                }
            };
            let waker = Waker::from(Arc::clone(&self));
            if task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
                *self.task.lock().unwrap() = Some(task);
            }
        }
    }
}

/// Drops its task when it is woken.
struct Cancel(Mutex<Option<Task>>);

impl Wake for Cancel {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().unwrap().take());
    }
}

fn until(done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LONG, "a task does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_waker_may_drop_its_task() {
    let daemon = Daemon::start();
    let (one, two) = (daemon.locks(), daemon.locks());
    for holder in [&one, &two] {
        let guard = holder.exclusive(5).acquire().unwrap();
        let waits = two.exclusive(5).acquire_async();
        let task: Task = Box::pin(async move { drop(waits.await) });
        let cancel = Arc::new(Cancel(Mutex::new(Some(task))));
        let waker = Waker::from(Arc::clone(&cancel));
        let mut task = cancel.0.lock().unwrap();
        assert!(task.as_mut().unwrap().as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        drop(task);
        drop(guard);
        until(|| cancel.0.lock().unwrap().is_none());
        drop(one.exclusive(5).timeout(LONG).acquire().unwrap());
    }
}

#[test]
fn a_waker_may_poll_its_task() {
    const TASKS: usize = 6;
    const ROUNDS: usize = 50;
    let daemon = Daemon::start();
    let machines = [daemon.locks(), daemon.locks()];
    let (inside, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    for number in 0..TASKS {
        let locks = machines[number % 2].clone();
        let (inside, done) = (Arc::clone(&inside), Arc::clone(&done));
        Inline::start(Box::pin(async move {
            for _ in 0..ROUNDS {
                let guard = locks.exclusive(5).timeout(LONG).acquire_async().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                inside.fetch_sub(1, Ordering::SeqCst);
                drop(guard);
            }
            done.fetch_add(1, Ordering::SeqCst);
        }));
    }
    until(|| done.load(Ordering::SeqCst) == TASKS);
}

#[test]
fn a_task_that_brings_another_waker_with_every_poll_keeps_one() {
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let daemon = Daemon::start();
    let (one, two) = (daemon.locks(), daemon.locks());
    let guard = one.exclusive(5).acquire().unwrap();
    let mut waits = Box::pin(two.exclusive(5).acquire_async());
    let (mut lost, mut also) = (Box::pin(guard.lost()), Box::pin(guard.lost()));
    let woken: Vec<_> = (0..100).map(|_| Arc::new(Count(AtomicUsize::new(0)))).collect();
    for waker in &woken {
        let waker = Waker::from(Arc::clone(waker));
        let mut context = Context::from_waker(&waker);
        assert!(waits.as_mut().poll(&mut context).is_pending());
        assert!(lost.as_mut().poll(&mut context).is_pending() && also.as_mut().poll(&mut context).is_pending());
    }
    assert_eq!(waits.pending().wait.wakers(), 1);
    assert_eq!(guard.wait.wakers(), 2);
    drop(lost);
    assert_eq!(guard.wait.wakers(), 1);
    drop(also);
    drop(guard);
    until(|| woken[99].0.load(Ordering::SeqCst) == 1);
    assert!(block_on(waits).is_ok());
    assert!(woken[..99].iter().all(|waker| waker.0.load(Ordering::SeqCst) == 0));
}

#[test]
fn many_asynchronous_requests_go_out_together_and_none_is_forgotten() {
    let daemon = Daemon::start();
    let sessions = [daemon.locks(), daemon.locks()];
    let mut context = Context::from_waker(Waker::noop());
    // Each lock goes to and fro, so what was given back has to arrive as well.
    for round in 0..20 {
        let of = |lock: u64| &sessions[(lock as usize + round) % 2];
        let mut waits: Vec<_> = (0..100).map(|lock| Box::pin(of(lock).exclusive(lock).acquire_async())).collect();
        let mut held = Vec::new();
        let start = Instant::now();
        while !waits.is_empty() {
            waits.retain_mut(|wait| match wait.as_mut().poll(&mut context) {
                Poll::Ready(guard) => {
                    held.push(guard.unwrap());
                    false
                }
                Poll::Pending => true,
            });
            assert!(start.elapsed() < LONG, "{} requests of round {round} wait", waits.len());
            std::thread::yield_now();
        }
        assert!(held.iter().all(|guard| !guard.is_lost()));
    }
}
