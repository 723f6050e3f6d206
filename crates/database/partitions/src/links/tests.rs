//! Members that meet, others that are refused, and what those learn who have no secret.

use super::*;
use std::os::unix::net::UnixStream;

fn members(me: u16, addresses: &[String], cluster: u8, secret: &[u8]) -> Members {
    Members { me, addresses: addresses.to_vec(), cluster: [cluster; 16], key: key(secret), begun: 0 }
}

/// Whether members 0 and 1, so described, find each other, and else what 1 says of it.
fn meet(cluster: [u8; 2], secrets: [&[u8]; 2]) -> Result<(), String> {
    let listeners: Vec<_> = (0..2).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let addresses: Vec<_> = listeners.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect();
    let mut all = Vec::new();
    for (me, listener) in listeners.iter().enumerate() {
        let (arrivals, rings) = Arrivals::new(2).unwrap();
        let arrivals = Arc::new(arrivals);
        let members = members(me as u16, &addresses, cluster[me], secrets[me]);
        let links = Links::start(members, listener, arrivals.clone(), Arc::default()).unwrap();
        all.push((arrivals, rings, links));
    }
    loop {
        if all[0].0.is_connected(1) && all[1].0.is_connected(0) {
            return Ok(());
        }
        if let Some(trouble) = all[1].0.trouble(0) {
            return Err(trouble);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn members_of_one_cluster_with_one_secret_meet() {
    assert_eq!(meet([7, 7], [b"s", b"s"]), Ok(()));
}

#[test]
fn others_are_refused_and_told_why() {
    assert!(meet([7, 8], [b"s", b"s"]).unwrap_err().contains("another cluster"));
    let other = meet([7, 7], [b"s", b"t"]).unwrap_err();
    assert!(other.contains("another secret"), "{other}");
}

/// A member on its own, which listens; `addresses` are those of all.
fn alone(me: u16, addresses: &[String], listener: &TcpListener) -> (Arc<Arrivals>, Vec<UnixStream>, Links) {
    let (arrivals, rings) = Arrivals::new(addresses.len()).unwrap();
    let arrivals = Arc::new(arrivals);
    let links = Links::start(members(me, addresses, 7, b"s"), listener, arrivals.clone(), Arc::default()).unwrap();
    (arrivals, vec![rings], links)
}

/// A hello that is right but for what the test changes.
fn hello(from: u16, to: u16, count: u16) -> [u8; HELLO] {
    let mut hello = [0; HELLO];
    hello[..8].copy_from_slice(b"LWKPART2");
    hello[8..10].copy_from_slice(&from.to_le_bytes());
    hello[10..12].copy_from_slice(&to.to_le_bytes());
    hello[12..14].copy_from_slice(&count.to_le_bytes());
    hello[32..64].fill(0x5A);
    hello[64..80].fill(7);
    hello
}

/// All that the other side sends until it closes the connection.
fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut answer = Vec::new();
    // One that is closed with bytes unread is reset.
    drop(stream.read_to_end(&mut answer));
    answer
}

#[test]
fn nothing_is_proved_to_who_has_proved_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (arrivals, _rings, links) = alone(0, &[address.to_string(), String::new()], &listener);
    // Of those who accept: one who says hello and waits, and one who guesses.
    for proved in [&[][..], &[0; PROVED]] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&hello(1, 0, 2)).unwrap();
        let mut theirs = [0; HELLO];
        stream.read_exact(&mut theirs).unwrap();
        assert_eq!(theirs[..8], *b"LWKPART2");
        stream.write_all(proved).unwrap();
        if proved.is_empty() {
            stream.shutdown(std::net::Shutdown::Write).unwrap();
        }
        assert_eq!(rest(&mut stream), b"", "it proves what it knows");
    }
    assert!(!arrivals.is_connected(1));
    drop(links);
}

#[test]
fn one_of_the_version_before_is_refused_and_says_so() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let old = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let addresses = [old.local_addr().unwrap().to_string(), address.to_string(), String::new()];
    let (arrivals, _rings, links) = alone(1, &addresses, &listener);
    // It connects: it gets a hello, whose version it does not know, and no more.
    let mut stream = TcpStream::connect(address).unwrap();
    let mut old_hello = hello(2, 1, 3);
    old_hello[7] = b'1';
    stream.write_all(&old_hello).unwrap();
    let answer = rest(&mut stream);
    assert!(answer.len() == HELLO && answer.starts_with(b"LWKPART2"), "{answer:?}");
    // It accepts.
    let (mut stream, _) = old.accept().unwrap();
    let mut old_hello = hello(0, 1, 3);
    old_hello[7] = b'1';
    stream.write_all(&old_hello).unwrap();
    let said = rest(&mut stream);
    assert_eq!(said.len(), HELLO, "it proves what it knows");
    loop {
        if let Some(trouble) = arrivals.trouble(0) {
            assert!(trouble.contains("version '1'") && trouble.contains("upgrade all nodes"), "{trouble}");
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(links);
}

/// Passes all bytes on, except that `there` and `back` may change the two hellos, until either side closes.
fn relay(stream: TcpStream, to: &str, there: impl FnOnce(&mut [u8; HELLO]), back: impl FnOnce(&mut [u8; HELLO])) {
    let (mut near, mut far) = (stream, TcpStream::connect(to).unwrap());
    let mut hello = [0; HELLO];
    near.read_exact(&mut hello).unwrap();
    there(&mut hello);
    far.write_all(&hello).unwrap();
    if far.read_exact(&mut hello).is_ok() {
        back(&mut hello);
        drop(near.write_all(&hello));
    }
    let (mut back_from, mut back_to) = (far.try_clone().unwrap(), near.try_clone().unwrap());
    let back = std::thread::spawn(move || {
        drop(io::copy(&mut back_from, &mut back_to));
        drop(back_to.shutdown(std::net::Shutdown::Both));
    });
    drop(io::copy(&mut near, &mut far));
    drop(far.shutdown(std::net::Shutdown::Both));
    back.join().unwrap();
}

#[test]
fn a_proof_is_no_use_at_another_member_or_at_who_made_it() {
    let bind = || TcpListener::bind("127.0.0.1:0").unwrap();
    let address = |listener: &TcpListener| listener.local_addr().unwrap().to_string();
    let (zero, one, two, thief) = (bind(), bind(), bind(), bind());
    let none = String::new;
    let (at_zero, _rings_0, _links_0) = alone(0, &[address(&zero), none(), none(), none()], &zero);
    let (at_one, _rings_1, _links_1) = alone(1, &[none(), address(&one), none(), none()], &one);
    // Member 2 is told that the thief's address is that of member 0, and connects to it again and again.
    let (at_two, _rings_2, links_2) = alone(2, &[address(&thief), none(), address(&two), none()], &two);
    let set = |at: usize, number: u16| {
        move |hello: &mut [u8; HELLO]| hello[at..at + 2].copy_from_slice(&number.to_le_bytes())
    };
    let next = || thief.accept().unwrap().0;
    let nobody_came = || (0..4).all(|number| !at_one.is_connected(number) && !at_two.is_connected(number));
    // Sent on to another member: as it is, with the number of that one, and with its answer as that of member 0.
    relay(next(), &address(&one), |_| (), |_| ());
    assert!(nobody_came());
    relay(next(), &address(&one), set(10, 1), |_| ());
    assert!(nobody_came());
    relay(next(), &address(&one), set(10, 1), set(8, 0));
    assert!(nobody_came());
    // Sent back to who made it: as it is, and as if it came from member 3, with an answer as of member 0.
    relay(next(), &address(&two), |_| (), |_| ());
    assert!(nobody_came());
    let from_three = |hello: &mut [u8; HELLO]| {
        set(8, 3)(hello);
        set(10, 2)(hello);
    };
    let to_two = |hello: &mut [u8; HELLO]| {
        set(8, 0)(hello);
        set(10, 2)(hello);
    };
    relay(next(), &address(&two), from_three, to_two);
    assert!(nobody_came());
    // Both see the same hellos only where nothing is changed: between the two that it is for.
    std::thread::scope(|scope| {
        let stream = next();
        let passes = scope.spawn(|| relay(stream, &address(&zero), |_| (), |_| ()));
        while !(at_two.is_connected(0) && at_zero.is_connected(2)) {
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(links_2);
        // What has come is closed.
        drop((at_zero.take_new(), at_two.take_new()));
        passes.join().unwrap();
    });
}

#[test]
fn who_says_nothing_keeps_nobody_waiting() {
    let listeners: Vec<_> = (0..2).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let addresses: Vec<_> = listeners.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect();
    // They are first in the listener's queue.
    let silent: Vec<_> = (0..10).map(|_| TcpStream::connect(&addresses[0]).unwrap()).collect();
    let (arrivals, _rings, _links) = alone(0, &addresses, &listeners[0]);
    let (_others, _other_rings, _other_links) = alone(1, &addresses, &listeners[1]);
    while !arrivals.is_connected(1) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let open = |mut stream: TcpStream| {
        stream.set_nonblocking(true).unwrap();
        stream.read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    };
    assert!(silent.into_iter().any(open), "the member came in when all of them had been sent away");
}

#[test]
fn what_is_no_member_is_sent_away() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (arrivals, _rings) = Arrivals::new(2).unwrap();
    let members = members(0, &[address.to_string(), String::new()], 7, b"s");
    let links = Links::start(members, &listener, Arc::new(arrivals), Arc::default()).unwrap();
    for bytes in [&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..], &[0; 200], &[]] {
        let mut stream = TcpStream::connect(address).unwrap();
        drop(stream.write_all(bytes));
        // Who was not understood may be sent away before it has said all.
        drop(stream.shutdown(std::net::Shutdown::Write));
        let mut answer = Vec::new();
        drop(stream.read_to_end(&mut answer));
        assert!(answer.len() <= HELLO, "{answer:?}");
    }
    drop(links);
}
