"""Identities as hostile as callers may send them."""

from __future__ import annotations

from hypothesis import strategies as st

from tallymark.model import LikeKey, Target

# Everything an id may hold: no control characters, no lone surrogates.
characters = st.characters(exclude_categories=("Cs", "Cc"))
ids = st.text(st.sampled_from("#~01/|,a") | characters | st.sampled_from("👍🏽é\u0301\u200d"), min_size=1, max_size=40)

# Few letters, so that two identities drawn apart are often equal, or equal but for where a separator stands.
confusable_ids = st.text("#~01a", min_size=1, max_size=4)

item_types = st.from_regex(r"[a-z][a-z0-9_-]{0,31}", fullmatch=True)
confusable_item_types = st.sampled_from(["a", "a0", "a1", "a-"])
reactions = st.from_regex(r"[a-z][a-z0-9_-]{0,31}", fullmatch=True) | st.sampled_from(["👍", "❤‍🔥", "🇩🇪", "👍🏽"])
confusable_reactions = st.sampled_from(["a", "a0", "a1", "like"])

targets = st.builds(Target, item_types, ids)
confusable_targets = st.builds(Target, confusable_item_types, confusable_ids)
like_keys = st.builds(LikeKey, ids, targets, reactions)
