//! Agent2Agent (A2A) 1.0: model, errors, states and card rules.
