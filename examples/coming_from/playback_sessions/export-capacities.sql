SELECT subscription_id, account_id, max_streams FROM subscriptions;
