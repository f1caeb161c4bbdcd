use serde_json::json;

use super::*;

/// Waits as long as it takes, unless it is told to end.
#[derive(Clone, Default)]
struct TestCancellation(std::sync::Arc<std::sync::atomic::AtomicBool>);

impl CancellationCheck for TestCancellation {
    fn lasts(&self) -> bool {
        !self.0.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn wait(&self, time: Duration) -> bool {
        std::thread::park_timeout(time);
        self.lasts()
    }
}

fn open(dir: &Path) -> ObjectStore<TestCancellation> {
    ObjectStore::open(dir, 1 << 30, TestCancellation::default()).expect("a store")
}

fn object(value: Value) -> Map<String, Value> {
    let Value::Object(object) = value else { panic!("{value} is no object") };
    object
}

fn find(store: &mut ObjectStore<TestCancellation>, field: &str, value: &Value) -> Vec<String> {
    store.find("c", field, value, None).expect("indexed")
}

#[test]
fn objects_stay_and_are_found() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut store = open(dir.path());
    for (id, value) in [
        ("b", json!({"n": 7, "t": "x", "deep": {"a": [1.5, null]}})),
        ("a", json!({"n": 7.0, "t": "y"})),
        ("c", json!({"n": "7", "t": null})),
        ("d", json!({"t": ["x"]})),
    ] {
        store.set("c", id, &object(value)).expect("set");
    }
    store.set("other", "a", &object(json!({"n": 7}))).expect("set");
    assert!(
        matches!(store.find("c", "n", &json!(7), None), Err(ObjectStoreError::NotIndexed(field)) if field == "n")
    );
    store.index("c", "n").expect("an index");
    store.index("c", "n").expect("once is enough");
    store.index("c", "t").expect("an index");

    let mut store = open(dir.path());
    assert_eq!(
        store.get("c", "b").expect("read").expect("there"),
        r#"{"deep":{"a":[1.5,null]},"n":7,"t":"x"}"#
    );
    assert_eq!(store.get("c", "x").expect("read"), None);
    assert_eq!(store.list("c", None).expect("a list"), ["a", "b", "c", "d"]);
    assert_eq!(store.list("c", Some(ObjectPage { after: "a", count: 2 })).expect("a page"), ["b", "c"]);
    assert_eq!(find(&mut store, "n", &json!(7)), ["a", "b"], "equal numbers are the same");
    assert_eq!(find(&mut store, "n", &json!("7")), ["c"], "a text is no number");
    assert_eq!(find(&mut store, "t", &json!(null)), ["c"]);
    assert_eq!(find(&mut store, "t", &json!("x")), ["b"]);
    let page = Some(ObjectPage { after: "a", count: 5 });
    assert_eq!(store.find("c", "n", &json!(7), page).expect("a page"), ["b"]);
    assert!(matches!(store.find("c", "t", &json!(["x"]), None), Err(ObjectStoreError::NotScalar)));

    store.set("c", "a", &object(json!({"n": 8, "t": "z".repeat(1000)}))).expect("set");
    assert_eq!(find(&mut store, "n", &json!(7)), ["b"], "the index follows");
    assert_eq!(find(&mut store, "t", &json!("z".repeat(1000))), ["a"]);
    assert_eq!(find(&mut store, "t", &json!("z".repeat(1001))), [""; 0]);
    assert!(store.delete("c", "a").expect("deleted"));
    assert!(!store.delete("c", "a").expect("nothing there"));
    assert_eq!(find(&mut store, "n", &json!(8)), [""; 0]);
}

#[test]
fn what_is_too_much_is_named() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut store = open(dir.path());
    let large = object(json!({"t": "x".repeat(OBJECT_BYTES_MAX)}));
    let small = object(json!({}));
    let refused = |outcome: Result<()>| outcome.expect_err("refused").to_string();
    assert!(refused(store.set("c", "a", &large)).contains("the limit is 262144"));
    assert!(refused(store.set("not a name", "a", &small)).contains("collection \"not a name\""));
    assert!(refused(store.set("c", "", &small)).contains("it is empty"));
    assert!(refused(store.set("c", &"x".repeat(257), &small)).contains("longer than 256"));
    assert!(refused(store.set("c", "a\nb", &small)).contains("control"));
    for n in 0..INDEXES_MAX {
        store.index("c", &format!("f{n}")).expect("an index");
    }
    assert!(refused(store.index("c", "more")).contains("16 indexes"));

    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut tight = ObjectStore::open(dir.path(), 1 << 20, TestCancellation::default()).expect("a store");
    let part = object(json!({"t": "x".repeat(100_000)}));
    let full = (0..100).find_map(|n| tight.set("c", &n.to_string(), &part).err()).expect("it is full once");
    assert!(matches!(full, ObjectStoreError::Full { bytes_max: 1_048_576 }), "{full}");
    let kept = tight.list("c", None).expect("still a store").len();
    assert!((5..=10).contains(&kept), "{kept}");
    assert!(tight.delete("c", "0").expect("there is room again"));
    tight.set("c", "new", &part).expect("in its place");
}

#[test]
fn collections_are_counted() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut store = open(dir.path());
    // Not one by one: each would go to the disk.
    store
        .change(|change| {
            for n in 0..COLLECTIONS_MAX {
                change.execute("INSERT INTO objects VALUES (?1, 'a', '{}')", [format!("c{n}")])?;
            }
            Ok(Ok(()))
        })
        .expect("filled");
    let refused = store.set("more", "a", &Map::new()).expect_err("one too many");
    assert!(matches!(refused, ObjectStoreError::TooManyCollections), "{refused}");
    assert!(matches!(store.index("more", "f"), Err(ObjectStoreError::TooManyCollections)));
    store.set("c7", "b", &Map::new()).expect("a known one");
}

#[test]
fn several_write_at_once_and_one_that_has_to_end_does() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let dir = dir.path().to_owned();
            std::thread::spawn(move || {
                let mut store = open(&dir);
                store.index("c", "writer").expect("an index");
                for n in 0..25 {
                    let id = format!("{writer}-{n}");
                    store.set("c", &id, &object(json!({"writer": writer}))).expect("set");
                }
            })
        })
        .collect();
    for writer in writers {
        writer.join().expect("it wrote everything");
    }
    let mut store = open(dir.path());
    assert_eq!(store.list("c", None).expect("a list").len(), 100);
    assert_eq!(find(&mut store, "writer", &json!(2)).len(), 25);

    let patience = TestCancellation::default();
    let mut second = ObjectStore::open(dir.path(), 1 << 30, patience.clone()).expect("a store");
    let held = store.connection.transaction_with_behavior(TransactionBehavior::Immediate).expect("held");
    patience.0.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(matches!(second.set("c", "x", &Map::new()), Err(ObjectStoreError::Stopped)));
    drop(held);
    assert_eq!(store.get("c", "x").expect("read"), None);
}

#[test]
fn a_store_that_was_left_in_the_middle_of_a_change_is_as_before() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut store = open(dir.path());
    store.set("c", "a", &object(json!({"n": 1}))).expect("set");
    let change = store.connection.transaction_with_behavior(TransactionBehavior::Immediate).expect("begun");
    change.execute("UPDATE objects SET body = '{\"n\":2}'", []).expect("changed");
    // What is on the disk now is what a crash would leave.
    let left = tempfile::tempdir().expect("a temporary directory");
    for entry in std::fs::read_dir(dir.path()).expect("a directory").flatten() {
        if !entry.file_name().to_string_lossy().ends_with("-shm") {
            std::fs::copy(entry.path(), left.path().join(entry.file_name())).expect("copied");
        }
    }
    assert_eq!(open(left.path()).get("c", "a").expect("read").expect("there"), r#"{"n":1}"#);
}
