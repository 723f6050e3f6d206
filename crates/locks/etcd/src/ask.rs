//! What a daemon asks before it serves.

use crate::{Entry, Failed, attempt};
use etcd_client::{
    Client, Compare, CompareOp, DeleteOptions, GetOptions, SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse,
};

/// Keys of one answer, which should stay below 4 MB.
const PAGE: i64 = 2000;

/// All keys below `folder`, as of one revision.
pub(crate) async fn load(mut client: Client, folder: String) -> Result<Vec<Entry>, Failed> {
    let mut entries = Vec::new();
    let mut from = folder.clone().into_bytes();
    let end = after_all(folder.as_bytes());
    let mut revision = 0;
    loop {
        let page = GetOptions::new()
            .with_range(end.clone())
            .with_limit(PAGE)
            .with_sort(SortTarget::Key, SortOrder::Ascend)
            .with_revision(revision);
        let answer = attempt(client.get(from, Some(page))).await?;
        if revision == 0 {
            revision = answer.header().map_or(0, |header| header.revision());
        }
        let Some(last) = answer.kvs().last() else { return Ok(entries) };
        from = [last.key(), &[0]].concat();
        entries.extend(answer.kvs().iter().map(|pair| Entry {
            key: pair.key()[folder.len()..].to_vec(),
            value: pair.value().to_vec(),
            created: pair.create_revision(),
        }));
        if !answer.more() {
            return Ok(entries);
        }
    }
}

/// Removes all keys below `folder`.
pub(crate) async fn remove(mut client: Client, folder: String) -> Result<(), Failed> {
    let all = DeleteOptions::new().with_range(after_all(folder.as_bytes()));
    attempt(client.delete(folder, Some(all))).await.map(drop)
}

/// The first key that does not begin with `folder`; etcd takes a zero byte for no end.
fn after_all(folder: &[u8]) -> Vec<u8> {
    let mut end = folder.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

/// Adds one to a counter, unless somebody else was faster: then anew.
pub(crate) async fn increment(mut client: Client, key: String) -> Result<u64, Failed> {
    loop {
        let answer = attempt(client.get(key.clone(), None)).await?;
        let (value, revision) = match answer.kvs().first() {
            None => (0, 0),
            Some(pair) => {
                let number = pair.value_str().ok().and_then(|text| text.parse::<u64>().ok());
                let wrong = || format!("the value of '{key}' is no number; it belongs to somebody else");
                (number.ok_or_else(wrong)?, pair.mod_revision())
            }
        };
        let next = value + 1;
        let same = Compare::mod_revision(key.clone(), CompareOp::Equal, revision);
        let put = TxnOp::put(key.clone(), next.to_string(), None);
        if attempt(client.txn(Txn::new().when([same]).and_then([put]))).await?.succeeded() {
            return Ok(next);
        }
    }
}

/// Replaces a value that nobody else has replaced meanwhile.
pub(crate) async fn replace(mut client: Client, key: String, old: Option<String>, new: String) -> Result<bool, Failed> {
    let same = match old {
        Some(old) => Compare::value(key.clone(), CompareOp::Equal, old),
        None => Compare::mod_revision(key.clone(), CompareOp::Equal, 0),
    };
    let (put, get) = (TxnOp::put(key.clone(), new.clone(), None), TxnOp::get(key, None));
    let answer = attempt(client.txn(Txn::new().when([same]).and_then([put]).or_else([get]))).await?;
    // An earlier attempt may have done it, whose answer was lost.
    let is_it = |one: TxnOpResponse| match one {
        TxnOpResponse::Get(found) => found.kvs().iter().any(|pair| pair.value() == new.as_bytes()),
        _ => false,
    };
    Ok(answer.succeeded() || answer.op_responses().into_iter().any(is_it))
}
