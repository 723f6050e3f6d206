//! Tests of the file of users.

use super::*;

#[test]
fn users_are_added_changed_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("users");
    assert!(matches!(Users::open(&path), Err(UsersError::Io { .. })));
    Users::set(&path, "ann", Some(Right::Define), "secret secret").unwrap();
    fs::write(&path, format!("# who\n\n{}", fs::read_to_string(&path).unwrap())).unwrap();
    Users::set(&path, "bob", Some(Right::Call), "pässword pässword").unwrap();
    Users::set(&path, "ann", Some(Right::Write), "other password").unwrap();
    let users = Users::open(&path).unwrap();
    let list = users.list().unwrap();
    let rights: Vec<_> = list.iter().map(|user| (user.name.as_str(), user.login.right)).collect();
    assert_eq!(rights, [("bob", Right::Call), ("ann", Right::Write)]);
    // A right that is not named stays, and is `call` for who is new.
    assert_eq!(Users::set(&path, "ann", None, "another password").unwrap(), Right::Write);
    assert_eq!(Users::set(&path, "new", None, "another password").unwrap(), Right::Call);
    assert!(Users::remove(&path, "new").unwrap());
    assert!(fs::read_to_string(&path).unwrap().starts_with("# who\n\nbob call SCRAM-SHA-256$4096:"));
    assert!(Users::remove(&path, "bob").unwrap() && !Users::remove(&path, "bob").unwrap());
    assert_eq!(users.list().unwrap().len(), 1);
    for name in ["", "#a", "a b", "a\nb", &"a".repeat(64)] {
        assert!(
            matches!(Users::set(&path, name, Some(Right::Call), "secret secret"), Err(UsersError::Word(_))),
            "{name}"
        );
    }
    for password in ["", "elevenchars", "élevenchars", &"x".repeat(1025)] {
        let refused = Users::set(&path, "eve", Some(Right::Call), password).unwrap_err().to_string();
        let says = format!(
            "a password has at least 12 characters and at most 1024 bytes, and this one has {}; ",
            password.chars().count()
        );
        assert!(refused.starts_with(&says) && refused.contains("openssl rand"), "{refused}");
    }
    assert_eq!(users.list().unwrap().len(), 1);
}

/// What a user that does not exist is asked to prove.
fn salt(users: &Users, name: &str) -> Vec<u8> {
    let ScramSecret::Verifier { salt, .. } = users.masked(name) else { panic!("no verifier") };
    salt
}

#[test]
fn users_that_do_not_exist_have_the_same_salts_at_each_start() {
    let folder = tempfile::tempdir().unwrap();
    let [path, other] = ["users", "other"].map(|name| folder.path().join(name));
    for path in [&path, &other] {
        Users::set(path, "ann", Some(Right::Define), "secret secret").unwrap();
    }
    let [first, second, foreign] = [&path, &path, &other].map(|path| Users::open(path).unwrap());
    assert_eq!(salt(&first, "nobody"), salt(&second, "nobody"));
    assert_ne!(salt(&first, "nobody"), salt(&first, "somebody"));
    assert_ne!(salt(&first, "nobody"), salt(&foreign, "nobody"));
    let secret = secret_of(&path);
    assert_eq!(fs::metadata(&secret).unwrap().mode() & 0o777, 0o600);
    // Other users change nothing about it, and a file of an older version gets its secret when it is opened.
    Users::set(&path, "bob", Some(Right::Call), "secret secret").unwrap();
    assert_eq!(salt(&Users::open(&path).unwrap(), "nobody"), salt(&first, "nobody"));
    fs::remove_file(&secret).unwrap();
    let [first, second] = [&path, &path].map(|path| Users::open(path).unwrap());
    assert_eq!(salt(&first, "nobody"), salt(&second, "nobody"));
    // What others can read, or is none, is refused.
    fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    assert!(matches!(Users::open(&path), Err(UsersError::Open(_))));
    fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    fs::write(&secret, "short").unwrap();
    assert!(Users::open(&path).unwrap_err().to_string().contains("it has not 32 bytes"));
    // Where none can be made, here because the name it has at first is too long, what is derived is also the same.
    let long = folder.path().join("x".repeat(248));
    Users::set(&long, "ann", Some(Right::Define), "secret secret").unwrap();
    let [first, second] = [&long, &long].map(|path| Users::open(path).unwrap());
    assert_eq!(salt(&first, "nobody"), salt(&second, "nobody"));
    assert!(!secret_of(&long).exists());
}

#[test]
fn files_that_are_wrong_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("users");
    Users::set(&path, "ann", Some(Right::Define), "secret secret").unwrap();
    let good = fs::read_to_string(&path).unwrap();
    for (text, expected) in [
        (format!("{good}bob call\n"), "line 2: it has not three words"),
        (good.replace('\n', " insert:t\n"), "line 1: 'insert:t' is no grant"),
        (format!("{good}{good}"), "line 2: 'ann' has a line before it"),
        (good.replace("define", "all"), "line 1: 'all' is no right"),
        (good.replace("SCRAM-SHA-256", "md5"), "line 1: its third word is no verifier"),
        (good.replace("$4096:", "$0:"), "line 1: its third word is no verifier"),
        (good.trim_end().trim_end_matches('=').into(), "line 1: its third word is no verifier"),
    ] {
        fs::write(&path, text).unwrap();
        let error = Users::open(&path).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    fs::write(&path, &good).unwrap();
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
    assert!(matches!(Users::open(&path), Err(UsersError::Open(_))));
}
