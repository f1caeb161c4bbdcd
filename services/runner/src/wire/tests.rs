use rhai::{Array, Blob, Map};

use super::*;

fn sent(args: &[Dynamic]) -> Vec<Dynamic> {
    let bytes = call_frame(ServedFunction::Http, args).expect("values that can be sent");
    let (length, kind) = head(bytes[..HEAD_BYTES].try_into().expect("a head")).expect("a frame");
    assert_eq!(length, bytes.len() - HEAD_BYTES);
    match FromEngineFrame::read(kind, bytes[HEAD_BYTES..].to_vec()) {
        Ok(FromEngineFrame::Call(ServedFunction::Http, args)) => args,
        other => panic!("{other:?}"),
    }
}

#[test]
fn values_arrive_as_they_were_sent() {
    let map = Map::from([("k".into(), Dynamic::from(7_i64)), ("ü".into(), Dynamic::UNIT)]);
    let list: Array = vec![
        true.into(),
        false.into(),
        i64::MIN.into(),
        f64::NEG_INFINITY.into(),
        0.1.into(),
        'é'.into(),
        "text\0".into(),
        map.into(),
        Dynamic::from_blob(Blob::from([1, 2])),
    ];
    let args = [Dynamic::from(list), Dynamic::UNIT, f64::NAN.into()];
    assert_eq!(format!("{:?}", sent(&args)), format!("{args:?}"));
}

#[test]
fn what_has_no_form_is_refused_before_it_is_sent() {
    let mut deep = Dynamic::UNIT;
    for _ in 0..=crate::engine::DEPTH_MAX {
        deep = Array::from([deep]).into();
    }
    assert_eq!(call_frame(ServedFunction::Http, &[deep]).expect_err("too deep"), ValueEncodeError::TooDeep);
    let instant = Dynamic::from(std::time::Instant::now());
    assert!(matches!(call_frame(ServedFunction::Http, &[instant]), Err(ValueEncodeError::Kind(_))));
    let large = Dynamic::from("x".repeat(RHAI_STRING_BYTES_MAX));
    let args = [large.clone(), large.clone(), large.clone()];
    assert_eq!(call_frame(ServedFunction::Http, &args).expect_err("too much"), ValueEncodeError::TooMany);
    let frame = answer_frame(&FunctionReply::Value(vec![large; 3].into()));
    assert!(matches!(
        ToEngineFrame::read(frame[4], &frame[5..]),
        Ok(ToEngineFrame::Answer(FunctionReply::TooLarge))
    ));
}

#[test]
fn frames_of_a_hostile_engine_are_refused() {
    let call = |bytes: &[u8]| {
        let body = [&[ServedFunction::Http as u8], bytes].concat();
        FromEngineFrame::read(CALL, body).map(drop).expect_err("a violation").0
    };
    let nested = [[7, 1, 0, 0, 0].repeat(200), vec![0]].concat();
    for (bytes, why) in [
        (&[99][..], "a value of no kind"),
        (&[3, 1, 2], "a value is cut off"),
        (&[6, 255, 255, 255, 255, b'x'], "a value is cut off"),
        (&[6, 1, 0, 0, 0, 0xff], "a text is no text"),
        (&[5, 0, 0xd8, 0, 0], "a character is none"),
        (&[7, 255, 255, 255, 255], "a value is cut off"),
        (&nested, "a value is nested too deep"),
        (&[0; 500_000], "a frame has too many values"),
    ] {
        assert_eq!(call(bytes), why);
    }
    assert!(FromEngineFrame::read(CALL, vec![200]).is_err());
    assert!(FromEngineFrame::read(CALL, Vec::new()).is_err());
    assert!(FromEngineFrame::read(END, b"{".to_vec()).is_err());
    assert!(FromEngineFrame::read(RUN, Vec::new()).is_err());
    assert!(head([255, 255, 255, 255, CALL]).is_err());
    let long = EngineScriptEnd::Panicked("é".repeat(5000));
    let frame = end_frame(&long);
    match FromEngineFrame::read(frame[4], frame[5..].to_vec()) {
        Ok(FromEngineFrame::End(EngineScriptEnd::Panicked(text))) => assert_eq!(text.len(), DETAIL_BYTES_MAX),
        other => panic!("{other:?}"),
    }
}

#[test]
fn functions_stand_at_their_numbers() {
    for (number, (function, _, _)) in ServedFunction::ALL.iter().enumerate() {
        assert_eq!(*function as usize, number);
    }
    assert!(
        ServedFunction::Run.is_of(EngineLanguage::Sal) && !ServedFunction::Run.is_of(EngineLanguage::Rhai)
    );
    assert!(
        !ServedFunction::OsisSet.is_of(EngineLanguage::Sal)
            && ServedFunction::ReadFile.is_of(EngineLanguage::Osis)
    );
}
